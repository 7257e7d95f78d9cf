#pragma once
// A rank's wait for its peers: it spins briefly where every rank has a core, then yields, then sleeps on its
// doorbell. While it sleeps it checks every 20 ms whether the awaited ranks still live. Every wait ends: by
// the awaited event, by a peer's death, by the group's abort, or by its deadline. An error names the rank at
// fault. Thread-safe.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/wire/control_block.h"
#include "trireme/wire/peer_process.h"

namespace trireme::wire {

/// Interval of checks that awaited ranks still live.
inline constexpr double kLookAfterPeers_s = 0.02;

/// Members of a group, as messages name them, and how they share the host.
struct Membership {
  int rank = 0;
  int size = 1;
  std::string group_name = "world";
  std::vector<int> rank_names;  ///< numbers used in messages, by group rank; empty: the group ranks
  int ranks_on_cores = 1;       ///< of the whole job, that may run on its cores: more than those: no spinning
  bool threads_of_one_process = false;

  /// The number of that group rank in messages.
  int rank_name(int r) const;
};

/// How a wait treats the core that it runs on.
enum class Patience {
  kForeground,  ///< a thread waits for the result now
  kBackground,  ///< never spins: the core belongs to the computing thread
};

/// The awaited event, and its deadline.
struct Wait {
  Deadline deadline;
  double timeout_s;  ///< for messages
  Patience patience = Patience::kForeground;
  std::function<std::string()> what;  ///< "all_reduce #12 of group world"
};

class Waiter {
 public:
  Waiter(std::shared_ptr<const ControlBlock> block, Membership membership);

  const Membership& membership() const { return membership_; }
  /// Called now and then during waits; must not wait itself.
  void set_idle_work(std::function<void()> work) { idle_work_ = std::move(work); }
  /// True: background waits behave like foreground ones, because a thread waits for their end.
  void set_urgent(bool urgent) { urgent_.store(urgent, std::memory_order_relaxed); }
  /// From now on every wait fails: this rank leaves.
  void stop();

  /// Advances a counter of this rank and wakes the others when it was the last to get there.
  void advance(Counter which, std::uint64_t value);
  bool all_reached(Counter which, std::uint64_t value) const;
  void wait_all(Counter which, std::uint64_t value, const Wait& wait);

  /// Waits until ready(); missing(r) returns whether rank r is awaited.
  template <class Ready, class Missing>
  void wait_until(const Wait& wait, const Ready& ready, const Missing& missing) {
    if (ready()) return;
    if (spins(wait)) {
      for (int i = 0; i < kSpins; ++i) {
        __builtin_ia32_pause();
        if (ready()) return;
      }
    }
    wait_long(wait, std::cref(ready), std::cref(missing));
  }

  /// Wakes all other sleeping ranks.
  void ring_all() const;
  /// Makes the group unusable for all and throws the first cause as CommError.
  [[noreturn]] void fail(const std::string& cause) const;
  /// Throws the cause when the group is unusable.
  void throw_if_aborted() const;
  /// The same, and when this rank has left.
  void throw_if_over() const;
  /// Sleeps until the doorbell rings, at most `max_s`; not at all when ready().
  void sleep(const std::function<bool()>& ready, double max_s) const;
  /// The cause when one of the missing ranks is dead or gone; else empty.
  std::string find_dead(const std::function<bool(int)>& missing) const;
  /// The same of rank r, whose memory could not be read: waits a moment for its end.
  std::string find_end_of(int r) const;
  /// "rank 1 (pid 77, stopped)" for all that are missing.
  std::string describe_missing(const std::function<bool(int)>& missing) const;

 private:
  static constexpr int kSpins = 2000;
  bool spins(const Wait& wait) const {
    return core_for_each_ &&
           (wait.patience == Patience::kForeground || urgent_.load(std::memory_order_relaxed));
  }
  void wait_long(const Wait& wait, const std::function<bool()>& ready,
                 const std::function<bool(int)>& missing);
  void check(const Wait& wait, const std::function<bool()>& ready, const std::function<bool(int)>& missing);

  std::shared_ptr<const ControlBlock> block_;
  const Membership membership_;
  const bool core_for_each_;
  std::vector<std::unique_ptr<PeerProcess>> peers_;
  std::function<void()> idle_work_;
  std::atomic<bool> urgent_{false};
  std::atomic<bool> stopped_{false};
};

}  // namespace trireme::wire
