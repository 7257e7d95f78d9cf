#pragma once
// A FUSE file system with one file. Its server answers until the first read of the file and then stops, like
// a file server that has died. Needs root. Mounted only for this process and its children.

#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "trireme/base/text.h"

namespace trireme::test {

class SilentFileSystem {
 public:
  explicit SilentFileSystem(const std::filesystem::path& folder) : folder_(folder) {
    if (::geteuid() != 0 || ::unshare(CLONE_NEWNS) != 0) return;
    if (std::system("mount --make-rprivate / 2>/dev/null") != 0) return;
    device_ = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device_ < 0) return;
    const std::string options = text("fd=", device_, ",rootmode=40000,user_id=0,group_id=0");
    there_ = ::mount("silent", folder_.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) == 0;
    if (there_) server_ = std::thread([this] { serve(); });
  }
  ~SilentFileSystem() {
    end();
    if (device_ >= 0) ::close(device_);
  }
  SilentFileSystem(const SilentFileSystem&) = delete;
  SilentFileSystem& operator=(const SilentFileSystem&) = delete;

  bool there() const { return there_; }
  std::filesystem::path file() const { return folder_ / "data"; }
  bool is_silent() const { return is_silent_; }
  /// Makes every call fail that waits for an answer.
  void end() {
    if (!there_) return;
    ::umount2(folder_.c_str(), MNT_FORCE);
    ::umount2(folder_.c_str(), MNT_DETACH);
    server_.join();
    there_ = false;
  }

 private:
  static constexpr std::uint64_t kFile = 2;

  static fuse_attr attributes(std::uint64_t node) {
    fuse_attr attr{};
    attr.ino = node;
    attr.mode = node == kFile ? S_IFREG | 0600 : S_IFDIR | 0700;
    attr.nlink = 1;
    attr.size = node == kFile ? 4096 : 0;
    return attr;
  }
  template <class Answer>
  void answer(std::uint64_t request, const Answer& value) const {
    fuse_out_header header{};
    header.len = static_cast<std::uint32_t>(sizeof header + sizeof value);
    header.unique = request;
    std::string bytes(header.len, '\0');
    std::memcpy(bytes.data(), &header, sizeof header);
    std::memcpy(bytes.data() + sizeof header, &value, sizeof value);
    [[maybe_unused]] const auto written = ::write(device_, bytes.data(), bytes.size());
  }
  void reject(std::uint64_t request) const {
    const fuse_out_header header{.len = sizeof header, .error = -ENOSYS, .unique = request};
    [[maybe_unused]] const auto written = ::write(device_, &header, sizeof header);
  }
  void serve() {
    std::string buffer(1 << 18, '\0');
    while (::read(device_, buffer.data(), buffer.size()) > 0) {
      fuse_in_header header{};
      std::memcpy(&header, buffer.data(), sizeof header);
      if (header.opcode == FUSE_READ) is_silent_ = true;
      if (is_silent_) continue;
      if (header.opcode == FUSE_INIT) {
        fuse_init_out init{};
        init.major = 7;
        init.minor = 31;
        init.max_write = 4096;
        answer(header.unique, init);
      } else if (header.opcode == FUSE_LOOKUP) {
        fuse_entry_out entry{};
        entry.nodeid = kFile;
        entry.attr = attributes(kFile);
        answer(header.unique, entry);
      } else if (header.opcode == FUSE_GETATTR) {
        fuse_attr_out found{};
        found.attr = attributes(header.nodeid);
        answer(header.unique, found);
      } else if (header.opcode == FUSE_OPEN) {
        fuse_open_out opened{};
        opened.open_flags = FOPEN_DIRECT_IO;
        answer(header.unique, opened);
      } else {
        reject(header.unique);
      }
    }
  }

  const std::filesystem::path folder_;
  bool there_ = false;
  int device_ = -1;
  std::atomic<bool> is_silent_ = false;
  std::thread server_;
};

}  // namespace trireme::test
