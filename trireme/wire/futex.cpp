#include "trireme/wire/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <ctime>

#include "trireme/base/clock.h"

namespace trireme::wire {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, double timeout_s) {
  timeout_s = std::min(timeout_s, kLongestTimeout_s);
  const double whole = std::floor(timeout_s);
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(whole);
  timeout.tv_nsec = static_cast<long>((timeout_s - whole) * 1e9);
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace trireme::wire
