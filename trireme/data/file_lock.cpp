#include "trireme/data/internal/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

namespace trireme::data {

FileLock::FileLock(const std::filesystem::path& path, double wait_s)
    : file_(trireme::open_file(path, O_RDWR | O_CREAT)), error_(file_.is_open() ? 0 : errno) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(wait_s);
  auto pause = std::chrono::microseconds(200);
  while (file_.is_open() && !held_) {
    held_ = ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0;
    if (held_ || (errno != EWOULDBLOCK && errno != EINTR) || Clock::now() >= end) return;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(20000));
  }
}

}  // namespace trireme::data
