#include "trireme/data/internal/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

namespace trireme::data {

FileLock::FileLock(const std::filesystem::path& path, double wait_s)
    : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)), error_(fd_ < 0 ? errno : 0) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(wait_s);
  auto pause = std::chrono::microseconds(200);
  while (fd_ >= 0 && !held_) {
    held_ = ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
    if (held_ || (errno != EWOULDBLOCK && errno != EINTR) || Clock::now() >= end) return;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(20000));
  }
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace trireme::data
