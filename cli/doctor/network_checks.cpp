#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "cli/doctor/finding.h"
#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

/// The error of binding to that loopback port; 0: it is available.
int bind_error(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  const int error = ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
  ::close(fd);
  return error;
}

Finding check_ports() {
  const int any = bind_error(0);
  if (any != 0) {
    return {.subject = "loopback",
            .state = FindingState::kFails,
            .found = text("no port on 127.0.0.1: ", std::strerror(any)),
            .advice = "ranks meet there: bring the loopback interface up (ip link set lo up)"};
  }
  constexpr int kUsualPort = 29500;
  const bool taken = bind_error(kUsualPort) == EADDRINUSE;
  return {.subject = "loopback",
          .found = text("free ports on 127.0.0.1", taken ? ", but 29500 is taken" : ", 29500 among them"),
          .advice = taken ? "give another --master-port where one is needed; on one host none is" : ""};
}

Finding check_interfaces() {
  std::string found;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) first = nullptr;
  for (const auto* entry = first; entry != nullptr; entry = entry->ifa_next) {
    const bool usable = entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == AF_INET &&
                        (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_LOOPBACK) == 0;
    if (!usable) continue;
    std::array<char, INET_ADDRSTRLEN> address{};
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr, address.data(),
                address.size());
    found += text(found.empty() ? "" : ", ", entry->ifa_name, " ", address.data());
  }
  ::freeifaddrs(first);
  return {.subject = "interfaces",
          .found = found.empty() ? "none besides loopback" : found,
          .advice = found.empty() ? "training over several hosts is not possible; on this one it is" : ""};
}

}  // namespace

Findings check_network() { return {check_ports(), check_interfaces()}; }

}  // namespace trireme::cli
