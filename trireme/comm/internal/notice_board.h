#pragma once
// Messages between the ranks of a world through the store, a few times per second, on a separate thread:
// - the first failure of a group, to and from the other ranks;
// - every rank's beat: its progress, its activity, and the ranks that it waits for;
// - when an operation has made no progress for a while on any rank, all ranks publish their last operations.
//   So an error of a mismatch names both sides without a message per operation.
// Others are only read while an operation of this rank makes no progress. The thread owns a connection of its
// own and may wait for it; readers get the last received state at once. Thread-safe.

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "trireme/comm/internal/group_state.h"
#include "trireme/comm/internal/heartbeat.h"
#include "trireme/comm/internal/operation_report.h"
#include "trireme/comm/internal/rendezvous.h"

namespace trireme::comm {

/// The groups of a rank that are alive. Thread-safe.
class GroupRegistry {
 public:
  using Groups = std::vector<std::shared_ptr<Group::State>>;
  void add(const std::shared_ptr<Group::State>& group);
  Groups groups();

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<Group::State>> groups_;
};

struct NoticeBoardOptions {
  int rank = 0;
  int world_size = 1;
  StoreSource connect;
  std::shared_ptr<telemetry::StatusPage> status;
  std::function<double()> cpu_s;  ///< called on the thread of the board
  double period_s = 0.25;
  double stall_s = 0.5;  ///< an operation older than this makes all ranks publish theirs
};

/// The received state of another rank.
struct PeerObservation {
  Heartbeat beat;
  double looked_s = 0;         ///< when it was looked for last; 0: never
  double heard_s = 0;          ///< when its beat was seen to have changed, or it was first looked for
  double progress_s = 0;       ///< the same of its signs
  bool made_progress = false;  ///< they have changed since it was first looked for
};

class NoticeBoard {
 public:
  using Groups = GroupRegistry::Groups;

  NoticeBoard(NoticeBoardOptions options, GroupRegistry& registry);
  /// Sends remaining messages, within about a second, and stops.
  ~NoticeBoard();
  NoticeBoard(const NoticeBoard&) = delete;
  NoticeBoard& operator=(const NoticeBoard&) = delete;

  /// Tells the other ranks. `group` may be Watcher::kAllGroups.
  void publish_failure(const std::string& group, const std::string& cause);
  /// Keeps the operations of a group that ends here: others may still wait for messages of this rank.
  void keep_last_words(const std::string& group, const std::vector<Operation>& operations);
  /// Announces to the others that this rank has left in good order.
  void announce_leave();

  PeerObservation observation(int world_rank) const;
  std::vector<PeerObservation> observations() const;
  /// Published operations of a group's members.
  Published published(const std::string& group) const;
  /// The first failure, of any group, that a rank has reported; empty: none was received.
  std::string failure_told_by(int world_rank) const;
  /// The first received failure of any other rank; empty: there was none.
  std::string first_failure() const;
  /// Since when the store has not answered; empty: it does.
  std::optional<double> store_lost_s() const;
  /// Whether calls of the store have failed for so many seconds. Unlike the above, not where it is slow
  /// alone.
  bool has_lost_store(double for_s) const;
  /// Whether any group of this rank has failed, or was notified of a failure.
  bool saw_failure() const { return saw_failure_; }

  /// Whether the store has been read for causes since: a report of a rank that had ended by then is received,
  /// unless the store is out of reach.
  bool has_asked_since(double since_s) const;
  /// Rounds that have ended.
  std::uint64_t rounds() const;
  /// Makes the next round come soon, and waits for it a little.
  void hurry();

 private:
  struct Told {
    std::string group;
    std::string cause;
  };

  void run();
  void round();
  void lost_store();
  void tell();
  void tell_last_words();
  void listen(const Groups& groups);
  void remember_failure(std::size_t world_rank, const std::string& cause);
  Groups stalled(const Groups& groups) const;
  void publish_operations(const Groups& groups, bool found_stall);
  void publish(const std::string& group, const std::string& operations);
  void beat(const Groups& groups);
  std::vector<int> missing(const GroupParts& parts, const Operation& operation) const;
  void look_around(const Groups& stalled);
  bool looks_now(const Groups& stalled);
  void look_at(const std::set<int>& world_ranks);
  void note(int world_rank, std::optional<Heartbeat> beat);
  void read_operations(const GroupParts& parts, int member);

  const NoticeBoardOptions options_;
  GroupRegistry& registry_;
  SignsOfLife signs_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Told> outbox_;
  std::map<std::string, std::string> last_words_;  ///< by group
  std::vector<PeerObservation> observations_;      ///< by world rank
  std::map<std::string, Published> published_;     ///< by group
  std::vector<std::string> failures_;              ///< the first of each world rank
  std::string first_failure_;
  std::optional<double> store_lost_s_;
  std::optional<double> store_failed_s_;  ///< since when; later than that of store_lost_s_
  std::uint64_t rounds_ = 0;
  double asked_s_ = 0;  ///< when the last round that has ended began, or found the store out of reach
  bool stop_ = false;
  bool hurry_ = false;
  bool leaves_ = false;
  std::atomic<bool> saw_failure_ = false;

  // The later members are the thread's.
  c10::intrusive_ptr<c10d::Store> store_;  ///< empty while it does not answer
  std::uint64_t num_beats_ = 0;
  std::uint64_t num_publications_ = 0;
  std::uint64_t num_told_ = 0;
  std::vector<std::uint64_t> num_heard_;  ///< failures, by world rank
  std::int64_t failures_seen_ = 0;        ///< of all ranks
  std::int64_t stalls_seen_ = 0;
  int publishing_rounds_ = 0;
  double next_look_s_ = 0;
  bool hurried_ = false;
  std::map<std::string, std::string> published_by_us_;                      ///< by group
  std::map<std::pair<std::string, int>, std::uint64_t> publications_read_;  ///< by group and member
  std::thread thread_;
};

}  // namespace trireme::comm
