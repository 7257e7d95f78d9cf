#include "trireme/autopsy/internal/connections.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "trireme/base/text.h"

namespace trireme::autopsy {
namespace {

/// Limit of the lines that are read: a host may have many connections of other programs.
constexpr int kMostLines = 20'000;

struct Connection {
  std::string peer;
  std::int64_t retransmissions = 0;
  unsigned long inode = 0;
};

/// Parses "0100007F:1F90": an address as the kernel has it in memory, in words of four bytes, and a port.
std::string address_in(const std::string& word) {
  const std::size_t colon = word.find(':');
  if (colon != 8 && colon != 32) return {};
  std::array<std::uint32_t, 4> address{};
  for (std::size_t i = 0; i < colon / 8; ++i)
    address[i] = static_cast<std::uint32_t>(std::strtoul(word.substr(i * 8, 8).c_str(), nullptr, 16));
  std::array<char, INET6_ADDRSTRLEN> shown{};
  const bool is_6 = colon == 32;
  if (::inet_ntop(is_6 ? AF_INET6 : AF_INET, address.data(), shown.data(), shown.size()) == nullptr)
    return {};
  const unsigned long port = std::strtoul(word.c_str() + colon + 1, nullptr, 16);
  return is_6 ? text("[", shown.data(), "]:", port) : text(shown.data(), ":", port);
}

/// "sl local remote st tx:rx tr:when retrnsmt uid timeout inode ..."
std::vector<Connection> connections_of(int pid) {
  std::vector<Connection> result;
  int lines = 0;
  for (const char* table : {"tcp", "tcp6"}) {
    std::ifstream file(text("/proc/", pid, "/net/", table));
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line) && ++lines < kMostLines) {
      std::istringstream words(line);
      std::string slot, local, remote, state, queues, timer, retransmissions, uid, timeout;
      Connection connection;
      if (!(words >> slot >> local >> remote >> state >> queues >> timer >> retransmissions >> uid >>
            timeout >> connection.inode))
        continue;
      connection.peer = address_in(remote);
      // Timer 1 is a retransmission. Timer 4 probes a peer without buffer space, which answers.
      if (timer.starts_with("01:"))
        connection.retransmissions =
            static_cast<std::int64_t>(std::strtoul(retransmissions.c_str(), nullptr, 16));
      result.push_back(std::move(connection));
    }
  }
  return result;
}

std::set<unsigned long> sockets_of(int pid) {
  std::set<unsigned long> inodes;
  const std::string folder = text("/proc/", pid, "/fd");
  if (DIR* descriptors = ::opendir(folder.c_str())) {
    while (const dirent* entry = ::readdir(descriptors)) {
      std::array<char, 64> link{};
      const std::string path = text(folder, "/", entry->d_name);
      if (::readlink(path.c_str(), link.data(), link.size() - 1) <= 0) continue;
      if (std::string_view(link.data()).starts_with("socket:["))
        inodes.insert(std::strtoul(link.data() + 8, nullptr, 10));
    }
    ::closedir(descriptors);
  }
  return inodes;
}

}  // namespace

std::string peer_of_socket(int pid, unsigned long inode) {
  const auto connections = connections_of(pid);
  const auto found = std::ranges::find(connections, inode, &Connection::inode);
  return found == connections.end() ? "" : found->peer;
}

std::vector<SilentPeer> silent_peers(int pid) {
  constexpr std::size_t kMost = 8;
  std::vector<SilentPeer> result;
  const std::set<unsigned long> own = sockets_of(pid);
  for (const Connection& each : connections_of(pid)) {
    if (each.retransmissions > 0 && own.contains(each.inode) && result.size() < kMost)
      result.push_back({each.peer, each.retransmissions});
  }
  std::ranges::sort(result, std::greater(), &SilentPeer::retransmissions);
  return result;
}

}  // namespace trireme::autopsy
