#pragma once
// What bench_autopsy disturbs ranks with: control groups, a disk that can be frozen, pipes that dry up, and a
// cable between two hosts that can be cut. Needs root.

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "trireme/base/error.h"

namespace trireme::bench {

namespace fs = std::filesystem;

/// The most ranks of a fault.
constexpr int kMostRanks = 4;
inline const fs::path kGroups = "/sys/fs/cgroup";

inline void put(const fs::path& file, const std::string& value) {
  std::ofstream out(file);
  out << value << std::flush;
  if (!out) throw InternalError(text("cannot write ", value, " to ", file.string()));
}

/// A control group of version 1 for one process; gone with the object.
class Group {
 public:
  Group(const std::string& controller, int pid)
      : folder_(kGroups / controller / text("trireme-", ::getpid())) {
    fs::create_directory(folder_);
    pid_ = pid;
  }
  void set(const std::string& file, const std::string& value) const { put(folder_ / file, value); }
  void enter() const { put(folder_ / "cgroup.procs", text(pid_)); }
  ~Group() {
    std::error_code ignored;
    for (int i = 0; i < 200 && !fs::remove(folder_, ignored); ++i) {
      if (!fs::exists(folder_, ignored)) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

 private:
  fs::path folder_;
  int pid_ = 0;
};

/// A file system of its own that can be frozen.
class FreezableDisk {
 public:
  explicit FreezableDisk(const fs::path& folder) : mount_(folder / "disk") {
    fs::create_directory(mount_);
    const std::string image = (folder / "image").string();
    const std::string command = text("truncate -s 16M ", image, " && mkfs.ext4 -q -F ", image,
                                     " && mount -o loop ", image, " ", mount_.string(), " 2>/dev/null");
    there_ = std::system(command.c_str()) == 0;
    if (there_) folder_ = ::open(mount_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  }
  ~FreezableDisk() {
    if (!there_) return;
    thaw();
    ::close(folder_);
    [[maybe_unused]] const int left = std::system(text("umount ", mount_.string()).c_str());
  }
  bool there() const { return there_; }
  std::string path() const { return mount_.string(); }
  void freeze() { ::ioctl(folder_, FIFREEZE, 0); }
  void thaw() { ::ioctl(folder_, FITHAW, 0); }

 private:
  const fs::path mount_;
  bool there_ = false;
  int folder_ = -1;
};

/// Feeds the pipes of all ranks until one of them is left out.
class Feeder {
 public:
  explicit Feeder(const fs::path& folder) {
    for (int rank = 0; rank < kMostRanks; ++rank) {
      const std::string path = (folder / text("samples.", rank)).string();
      ::mkfifo(path.c_str(), 0600);
      pipes_.push_back(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    }
    thread_ = std::thread([this] { run(); });
  }
  ~Feeder() {
    stop_ = true;
    thread_.join();
    for (const int pipe : pipes_) ::close(pipe);
  }
  void leave_out(int rank) { left_out_ = rank; }

 private:
  void run() {
    while (!stop_) {
      for (int rank = 0; rank < kMostRanks; ++rank) {
        if (rank != left_out_) [[maybe_unused]]
          const auto written = ::write(pipes_[static_cast<std::size_t>(rank)], "x", 1);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  std::vector<int> pipes_;
  std::atomic<int> left_out_ = -1;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

/// Two hosts that are network namespaces, with a cable between them.
class Cable {
 public:
  Cable() {
    there_ = true;
    for (const int host : {0, 1}) there_ = there_ && run("ip netns add " + name(host));
    there_ = there_ &&
             run(text("ip link add cable netns ", name(0), " type veth peer name cable netns ", name(1)));
    for (const int host : {0, 1}) {
      const std::string ip = text("ip -n ", name(host), " ");
      there_ = there_ && run(ip + "link set lo up") &&
               run(text(ip, "addr add ", address(host), "/24 dev cable")) && run(ip + "link set cable up");
    }
  }
  ~Cable() {
    for (const int host : {0, 1}) run("ip netns del " + name(host));
  }
  Cable(const Cable&) = delete;
  Cable& operator=(const Cable&) = delete;
  bool there() const { return there_; }
  std::string name(int host) const { return text("trireme-autopsy-", ::getpid(), "-", host); }
  static std::string address(int host) { return text("10.78.0.", host + 1); }
  /// Frames to a wrong station are dropped, as at a switch that has failed.
  void cut() const {
    for (const int host : {0, 1})
      run(text("ip -n ", name(host), " neigh replace ", address(1 - host),
               " lladdr 02:00:00:00:00:99 dev cable nud permanent"));
  }

 private:
  static bool run(const std::string& command) { return std::system((command + " 2>/dev/null").c_str()) == 0; }
  bool there_ = false;
};

}  // namespace trireme::bench
