#include "tests/support/ports.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <fstream>
#include <stdexcept>

namespace trireme::test {
namespace {

constexpr int kFirst = 10240;  // lower ports belong to services
constexpr int kEnd = 20000;    // from here on, ports are chosen by the name of a job
constexpr int kOfAProcess = 64;

/// The first port that the kernel gives to outgoing connections.
int first_of_connections() {
  int first = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first;
  return first;
}

/// A different port at each call, far from those of processes that were started just before or after.
int next_candidate() {
  static std::atomic<int> asked{0};
  const int end = std::min(kEnd, first_of_connections());
  if (end <= kFirst) return 0;  // the kernel chooses, because it uses all of these ports
  return kFirst + static_cast<int>((::getpid() * std::int64_t{kOfAProcess} + asked++) % (end - kFirst));
}

}  // namespace

TakenPort::TakenPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  bool bound = false;
  for (int i = 0; i < kEnd - kFirst && !bound; ++i) {
    address.sin_port = htons(static_cast<std::uint16_t>(next_candidate()));
    bound = ::bind(fd_, generic, length) == 0;
  }
  if (!bound || ::listen(fd_, 1) != 0 || ::getsockname(fd_, generic, &length) != 0) {
    ::close(fd_);
    throw std::runtime_error("no free port");
  }
  number_ = ntohs(address.sin_port);
}

TakenPort::~TakenPort() { ::close(fd_); }

int free_port() { return TakenPort().number(); }

}  // namespace trireme::test
