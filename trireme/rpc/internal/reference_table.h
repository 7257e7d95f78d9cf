#pragma once
// State that a worker keeps for others: values of references of other workers, and the holders of such
// references. A value is destroyed when it has no holder.
//
// A worker that passes a reference on notifies the owner before, and is the *introducer* of the new holder. A
// worker that drops one sends the owner its introducer. So each pair of introducer and holder has its own
// count. The two messages come over different links, in any order, and the count may be below zero for a
// while. But the introducer's own reference is there until it drops it, and that message follows the other on
// the same link. So a value is never destroyed early, and no hand-over waits for an answer. A value: not
// thread-safe.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trireme/rpc/ids.h"
#include "trireme/rpc/remote_value.h"

namespace trireme::rpc {

class ReferenceTable {
 public:
  explicit ReferenceTable(WorkerId self) : self_(self) {}

  /// A new reference to a value of this worker, which has one.
  RefId make_own();
  /// The call that makes this reference has come from its creator, which has one.
  void arrived(const RefId& id);
  /// Another reference on this worker, to a value of its own.
  void hold_here(const RefId& id);
  /// The value without references: to be destroyed where no lock is held.
  [[nodiscard]] std::shared_ptr<RemoteValue> release_here(const RefId& id);
  [[nodiscard]] std::shared_ptr<RemoteValue> introduced(const RefId& id, WorkerId introducer,
                                                        WorkerId holder);
  [[nodiscard]] std::shared_ptr<RemoteValue> dropped(const RefId& id, WorkerId introducer, WorkerId holder);
  /// It has none any more. Values that it was to create never come: those that wait for them get `reason`.
  [[nodiscard]] std::vector<std::shared_ptr<RemoteValue>> worker_gone(WorkerId worker,
                                                                      const std::string& reason);

  /// Where its value is, or will be; null when it is gone.
  std::shared_ptr<RemoteValue> find(const RefId& id);
  std::size_t size() const { return entries_.size(); }
  /// Of other workers.
  std::vector<RefId> held_elsewhere() const;

 private:
  struct Entry {
    std::shared_ptr<RemoteValue> value = std::make_shared<RemoteValue>();
    std::map<std::pair<WorkerId, WorkerId>, std::int64_t> held;  ///< by introducer and holder
    std::int64_t held_here = 0;
    bool created = false;
  };

  Entry& entry(const RefId& id) { return entries_[id]; }
  void count(Entry& entry, WorkerId introducer, WorkerId holder, std::int64_t by);
  std::shared_ptr<RemoteValue> take_if_free(const RefId& id);

  WorkerId self_;
  std::map<RefId, Entry> entries_;
  std::map<WorkerId, std::uint64_t> last_created_;  ///< by creator
  std::set<WorkerId> gone_;
};

}  // namespace trireme::rpc
