#pragma once
// Watches the groups of a Context while they communicate, and is the one place that decides the time to wait
// for other ranks. It fails an operation because of:
// - a process of this host that died, or a rank that left, while an operation still needs it: at once;
// - a rank that issued another operation: once the operation makes no progress;
// - after the first deadline (comm.timeout_s): a rank that is frozen, cut off, stuck, or in a deadlock. A
//   rank that makes progress is only reported as slow;
// - after the second deadline (comm.slow_timeout_s): the slow one too.
// The state of other ranks comes from the NoticeBoard. The deciding thread never waits for the store, and
// does not delay operations. Thread-safe.

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trireme/base/log.h"
#include "trireme/comm/internal/notice_board.h"
#include "trireme/comm/internal/patience.h"
#include "trireme/comm/internal/rendezvous.h"
#include "trireme/wire/peer_process.h"

namespace trireme::comm {

struct WatcherOptions {
  int rank = 0;
  std::vector<Arrival> arrivals;  ///< by world rank
  StoreSource connect;
  std::string store_host = "this process";  ///< server of the store, in words
  std::shared_ptr<telemetry::StatusPage> status;
  Log log;
  double period_s = 0.25;
  double stall_s = 0.5;  ///< an operation older than this makes all ranks publish theirs
};

class Watcher {
 public:
  static constexpr const char* kAllGroups = "*";

  /// Made by the thread that computes, where ranks are threads of one process.
  explicit Watcher(WatcherOptions options);
  /// Sends remaining messages, within about a second, and stops.
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  void watch(const std::shared_ptr<Group::State>& group) { registry_.add(group); }
  /// Tells the other ranks. `group` may be kAllGroups.
  void publish_failure(const std::string& group, const std::string& cause);
  /// The operations of a group that ends here.
  void keep_last_words(const std::string& group, const std::vector<Operation>& operations);
  /// Announces to the others that this rank has left in good order. The destructor does so too.
  void announce_leave() { board_.announce_leave(); }
  /// Which ranks keep the operation from ending, as far as is known after looking for at most `patience_s`;
  /// empty when nothing is known.
  std::string explain(const Group::State& group, const Operation& operation, double patience_s);
  /// A rank that has announced its end is not waited for.
  bool has_left(int world_rank) const;
  bool is_dead(int world_rank) const;
  /// Whether the store has not answered for so many seconds.
  bool has_lost_store(double for_s) const { return board_.has_lost_store(for_s); }
  /// Whether any group of this rank has failed, or was notified of a failure.
  bool saw_failure() const { return board_.saw_failure(); }

 private:
  /// A wait of a thread of this rank.
  struct Wait {
    const Group::State& group;
    const Operation& operation;
    std::vector<int> missing;  ///< world ranks
    double age_s;
  };
  /// Why an operation cannot end, or is given up.
  struct Finding {
    std::uint64_t number;
    std::string cause;
  };
  /// The logged warning about a slow rank.
  struct SlowWarning {
    double said_s = 0;
    double interval_s = 0;
  };

  void run();
  void note_own_pause(double looked_s);
  double since_s(const Operation& operation) const;
  void look_after(Group::State& group);
  void note_departures();
  bool has_unheard_departures(const Group::State& group) const;
  std::optional<Finding> departure_in(const Group::State& group);
  std::optional<Finding> disagreement_in(const Group::State& group);
  std::optional<Finding> lateness_in(const Group::State& group);
  bool is_sure_of_departures(const Group::State& group, const Operation& operation) const;
  std::string lateness_of(const Wait& wait);
  double patience_s(const Wait& wait) const;
  double all_came_s(const Wait& wait);
  std::vector<WaitStatus> wait_statuses(const Wait& wait) const;
  void warn_slow(const std::vector<int>& slow, const Wait& wait);
  bool is_reporter(const Wait& wait) const;
  std::string how_it_left(int world_rank) const;
  std::string how_it_died(int world_rank) const;
  std::string who_is_gone(const Group::State& group, const Operation& operation) const;
  std::string who_is_behind(const Group::State& group, const Operation& operation) const;
  std::string describe(const Verdict& verdict, const Wait& wait) const;
  std::string state_of(int world_rank, const Wait& wait) const;
  std::string name_of_rank(int world_rank) const;

  const WatcherOptions options_;
  std::vector<std::unique_ptr<wire::PeerProcess>> processes_;  ///< by world rank; null on other hosts
  GroupRegistry registry_;
  NoticeBoard board_;

  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::atomic<double> awake_since_s_ = 0;  ///< this rank may have been frozen itself
  // The later members are the thread's.
  std::vector<std::optional<double>> gone_s_;  ///< by world rank: when it was noticed
  /// When an operation that is waited for, by group and number, was first seen to be issued by all it needs.
  std::map<std::pair<std::string, std::uint64_t>, double> all_came_s_;
  std::map<int, SlowWarning> slow_warnings_;
  std::thread thread_;
};

}  // namespace trireme::comm
