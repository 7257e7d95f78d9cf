// Unauthenticated connections to the ports of whole runs, and the addresses of those ports.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "tests/support/two_hosts.h"
#include "trireme/base/file_descriptor.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

/// Address and port (hexadecimal, as in /proc/net/tcp) of all sockets that listen in this thread's network.
std::set<std::pair<std::string, int>> listening_sockets() {
  std::set<std::pair<std::string, int>> found;
  for (const char* table : {"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state;
      words >> number >> local >> remote >> state;
      const std::size_t colon = local.rfind(':');
      if (state == "0A" && colon != std::string::npos)
        found.emplace(local.substr(0, colon), std::stoi(local.substr(colon + 1), nullptr, 16));
    }
  }
  return found;
}

bool is_loopback(const std::string& hexadecimal) {
  return hexadecimal == "0100007F" || hexadecimal == "00000000000000000000000001000000" ||
         hexadecimal == "0000000000000000FFFF00000100007F";
}

/// Opens many connections to every listening port of a host as soon as the port exists. Sends nothing on
/// them, or half a greeting, until stop().
class Strangers {
 public:
  static constexpr int kAtAPort = 30;

  Strangers(const NamespaceHosts& hosts, int host)
      : address_(hosts.address(host)), thread_([this, &hosts, host] {
          hosts.on_host(host, [this] {
            while (!ends_)
              for (const auto& [address, port] : listening_sockets()) crowd_at(port);
          });
        }) {}
  ~Strangers() { stop(); }
  void stop() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
  }
  /// Number of ports that got all their connections. Call after stop().
  std::size_t num_ports() const { return crowds_.size(); }

 private:
  void crowd_at(int port) {
    std::vector<FileDescriptor>& crowd = crowds_[port];
    if (!crowd.empty()) return;
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    ::inet_pton(AF_INET, address_.c_str(), &to.sin_addr);
    for (int i = 0; i < kAtAPort; ++i) {
      crowd.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      ::connect(crowd.back().get(), reinterpret_cast<sockaddr*>(&to), sizeof to);
    }
    for (int i = 0; i < kAtAPort; i += 2)
      ::send(crowd[static_cast<std::size_t>(i)].get(), "TRIREME", 7, MSG_NOSIGNAL);
  }

  const std::string address_;
  std::atomic<bool> ends_ = false;
  std::map<int, std::vector<FileDescriptor>> crowds_;
  std::thread thread_;
};

TEST(SecurityStrangers, ThirtyAtEveryPortDelayNoRun) {
  const TwoHosts hosts;
  if (!hosts.unavailable_because().empty()) GTEST_SKIP() << hosts.unavailable_because();
  Strangers first(hosts, 0), second(hosts, 1);
  const auto launchers = hosts.launch(2, {bin("rank_fault_loop"), "20", "1", "ring"});
  for (const auto& launcher : launchers) {
    const ChildResult result = launcher->wait(90);
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  first.stop();
  second.stop();
  EXPECT_GT(first.num_ports() + second.num_ports(), 4U) << "the store, and the meeting of four ranks";
}

TEST(SecurityListening, LocalRunListensOnLoopbackOnly) {
  const TwoHosts hosts;
  if (!hosts.unavailable_because().empty()) GTEST_SKIP() << hosts.unavailable_because();
  hosts.on_host(0, [] {
    for (const char* backend : {"auto", "gloo", "hierarchical"}) {
      ChildProcess run(
          {bin("trireme"), "launch", "-n", "2", "--", bin("rank_ddp_steps"), backend, "1000000"});
      std::set<std::pair<std::string, int>> found;
      bool is_under_way = false;
      for (int look = 0; look < 600 && !is_under_way; ++look) {
        is_under_way = run.wait_for_output("rank 0 is under way", 0.05);
        found.merge(listening_sockets());
      }
      ASSERT_TRUE(is_under_way) << backend;
      EXPECT_FALSE(found.empty()) << backend << ": its store";
      for (const auto& [address, port] : found)
        EXPECT_TRUE(is_loopback(address)) << backend << ": " << address << ", port " << port;
      run.send_signal(SIGKILL);
    }
  });
}

}  // namespace
}  // namespace trireme::test
