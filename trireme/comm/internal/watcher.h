#pragma once
// The thread of a Context that looks after its groups while they communicate:
// - it carries the first failure of a group to the other ranks, and theirs to us, through the store;
// - it notices that a process of this host died, or that a rank left, while an operation still waits for it;
// - when an operation has stood still for a while, all ranks publish their last operations, and those who
//   issued something else, or nothing, are found. This is how a mismatch gets both sides named without a
//   message per operation.
// It owns a connection of its own to the store, and nothing it does delays an operation. Thread-safe.

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "trireme/comm/internal/group_state.h"
#include "trireme/comm/internal/operation_report.h"
#include "trireme/comm/internal/rendezvous.h"
#include "trireme/wire/peer_process.h"

namespace trireme::comm {

struct WatcherOptions {
  int rank = 0;
  std::vector<Arrival> arrivals;  ///< by world rank
  StoreSource connect;
  double period_s = 0.25;
  double stall_s = 0.5;  ///< an operation older than this makes all ranks publish theirs
};

class Watcher {
 public:
  static constexpr const char* kAllGroups = "*";

  explicit Watcher(WatcherOptions options);
  /// Sends what is still to be told, within about a second, and stops.
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  void watch(const std::shared_ptr<Group::State>& group);
  /// Tells the other ranks. `group` may be kAllGroups.
  void publish_failure(const std::string& group, const std::string& cause);
  /// Which ranks keep the operation from ending, as far as is known after looking for at most `patience_s`;
  /// empty when nothing is known.
  std::string explain(const Group::State& group, const Operation& operation, double patience_s);
  /// A rank that has said goodbye is not waited for.
  bool has_left(int world_rank) const;
  bool is_dead(int world_rank) const;
  /// Whether any group of this rank has failed, or was told to.
  bool saw_failure() const { return saw_failure_; }

 private:
  struct Told {
    std::string group;
    std::string cause;
  };
  using Groups = std::vector<std::shared_ptr<Group::State>>;

  void run();
  void round();
  void lost_store();
  Groups groups();
  void tell();
  void listen(const Groups& groups);
  void publish_operations(const Groups& groups);
  void read_operations(const Groups& groups);
  void read_member(const GroupParts& parts, int member);
  Published published(const std::string& group) const;
  void blame_the_gone(const Groups& groups);
  std::string who_is_gone(const Group::State& group, const Operation& operation) const;
  std::string who_is_behind(const Group::State& group, const Operation& operation) const;
  std::string name_of_rank(int world_rank) const;

  const WatcherOptions options_;
  std::vector<std::unique_ptr<wire::PeerProcess>> processes_;  ///< by world rank; null on other hosts

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::weak_ptr<Group::State>> groups_;
  std::vector<Told> outbox_;
  std::vector<bool> left_;
  /// What members have published of their operations, by group.
  std::map<std::string, Published> published_;
  std::vector<std::string> beats_;
  std::vector<std::optional<double>> beat_changed_s_;  ///< empty before the first look
  std::uint64_t rounds_ = 0;
  bool stop_ = false;
  std::atomic<bool> saw_failure_ = false;
  bool hurry_ = false;

  c10::intrusive_ptr<c10d::Store> store_;  ///< of the thread; empty while the store does not answer
  double store_lost_s_ = 0;                ///< since when it does not answer; 0: it does
  std::uint64_t beat_ = 0;
  std::uint64_t told_ = 0;            ///< failures that this rank has told
  std::vector<std::uint64_t> heard_;  ///< by world rank
  std::int64_t failures_seen_ = 0;    ///< of all ranks
  std::int64_t stalls_seen_ = 0;
  int publishing_rounds_ = 0;
  std::map<std::string, std::uint64_t> stalled_number_;
  std::thread thread_;
};

}  // namespace trireme::comm
