#pragma once
// A private network and hosts file for one thread: loopback, one public address, and names that resolve as
// the test says. No packet leaves the kernel. Needs root.

#include <arpa/inet.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "tests/support/temporary_folder.h"

namespace trireme::test {

inline constexpr const char* kPublicAddress = "203.0.113.5";

class OwnInternet {
 public:
  /// `hosts`: lines of hosts(5).
  explicit OwnInternet(const std::string& hosts) {
    std::ofstream(folder_ / "hosts") << "127.0.0.1 localhost\n" << hosts;
  }

  /// Runs `body` in this network, on a new thread, whose own threads belong to it as well. Returns false if
  /// this host cannot create such a network.
  bool run(const std::function<void()>& body) const {
    bool entered = false;
    std::thread([&] {
      entered = enter();
      if (entered) body();
    }).join();
    return entered;
  }

 private:
  bool enter() const {
    return ::unshare(CLONE_NEWNET | CLONE_NEWNS) == 0 &&
           ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount((folder_ / "hosts").c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr) == 0 &&
           begin_loopback();
  }

  static bool begin_loopback() {
    const int any = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ifreq up{}, address{};
    std::strcpy(up.ifr_name, "lo");
    up.ifr_flags = IFF_UP;
    std::strcpy(address.ifr_name, "lo:0");
    sockaddr_in at{};
    at.sin_family = AF_INET;
    ::inet_pton(AF_INET, kPublicAddress, &at.sin_addr);
    std::memcpy(&address.ifr_addr, &at, sizeof at);
    const bool done = ::ioctl(any, SIOCSIFFLAGS, &up) == 0 && ::ioctl(any, SIOCSIFADDR, &address) == 0;
    ::close(any);
    return done;
  }

  TemporaryFolder folder_;
};

}  // namespace trireme::test
