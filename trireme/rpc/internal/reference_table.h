#pragma once
// What a worker keeps for others: values that references of other workers refer to, and who has such a
// reference. A value goes when nobody has one.
//
// Whoever hands a reference on tells the owner of it before, and is the new one's *introducer*; whoever drops
// one tells the owner who had introduced it. So each pair of introducer and holder has a count of its own.
// The two messages come over different links, in any order, and the count may be below zero for a while; but
// the introducer's own reference is there until it drops it, and that message follows the other on the same
// link. So a value never goes early, and no hand-over waits for an answer. A value: not thread-safe.

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
  /// The call that makes this reference has come from its creator, who has one.
  void arrived(const RefId& id);
  /// Another reference on this worker, to a value of its own.
  void hold_here(const RefId& id);
  /// What nobody refers to any more: to be destroyed where no lock is held.
  [[nodiscard]] std::shared_ptr<RemoteValue> release_here(const RefId& id);
  [[nodiscard]] std::shared_ptr<RemoteValue> introduced(const RefId& id, WorkerId introducer,
                                                        WorkerId holder);
  [[nodiscard]] std::shared_ptr<RemoteValue> dropped(const RefId& id, WorkerId introducer, WorkerId holder);
  /// It has none any more. What it was to create never comes: those that wait for it get `reason`.
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
