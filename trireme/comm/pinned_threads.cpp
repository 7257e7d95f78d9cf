#include "trireme/comm/internal/pinned_threads.h"

#include <sched.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/topology/core_places.h"

namespace trireme::comm {
namespace {

cpu_set_t mask_of(const std::vector<int>& cores) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const int core : cores) CPU_SET(static_cast<std::size_t>(core), &mask);
  return mask;
}

/// Moves the threads of this process whose affinity is exactly `from`. Returns their number, without threads
/// that ended meanwhile. `error` is set if a thread could not be moved.
int move_threads(const std::vector<int>& from, const std::vector<int>& to, int& error) {
  const cpu_set_t before = mask_of(from), now = mask_of(to);
  int moved = 0;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", gone)) {
    const auto thread = static_cast<pid_t>(std::stol(entry.path().filename().string()));
    cpu_set_t found;
    if (::sched_getaffinity(thread, sizeof found, &found) != 0 || CPU_EQUAL(&found, &before) == 0) continue;
    if (::sched_setaffinity(thread, sizeof now, &now) == 0) {
      ++moved;
    } else if (errno != ESRCH) {
      error = errno;
    }
  }
  return moved;
}

/// Repeats, because a thread that was not moved yet may have started another one.
int move_all_threads(const std::vector<int>& from, const std::vector<int>& to) {
  constexpr int kLooks = 8;
  int error = 0;
  for (int look = 0; look < kLooks && from != to && error == 0; ++look) {
    if (move_threads(from, to, error) == 0) break;
  }
  return error;
}

}  // namespace

PinnedThreads::PinnedThreads(const std::vector<int>& cores) : before_(allowed_cores()), now_(cores) {
  const int error = move_all_threads(before_, now_);
  if (error == 0) return;
  move_all_threads(now_, before_);
  throw InternalError(text("the kernel does not let this process run on cores ",
                           topology::describe_cores(cores), " alone: ", std::strerror(error),
                           "; leave comm.pin out"));
}

PinnedThreads::~PinnedThreads() { move_all_threads(now_, before_); }

}  // namespace trireme::comm
