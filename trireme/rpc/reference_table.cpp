#include "trireme/rpc/internal/reference_table.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::rpc {

RefId ReferenceTable::make_own() {
  const RefId id{self_, self_, ++last_created_[self_]};
  Entry& made = entry(id);
  made.created = true;
  made.held_here = 1;
  return id;
}

void ReferenceTable::arrived(const RefId& id) {
  auto& last = last_created_[id.creator];
  last = std::max(last, id.number);
  Entry& made = entry(id);
  made.created = true;
  if (!gone_.contains(id.creator)) count(made, id.creator, id.creator, 1);
}

void ReferenceTable::hold_here(const RefId& id) {
  if (find(id)) ++entry(id).held_here;
}

std::shared_ptr<RemoteValue> ReferenceTable::release_here(const RefId& id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return nullptr;
  --found->second.held_here;
  return take_if_free(id);
}

std::shared_ptr<RemoteValue> ReferenceTable::introduced(const RefId& id, WorkerId introducer,
                                                        WorkerId holder) {
  if (gone_.contains(holder) || !find(id)) return nullptr;
  count(entry(id), introducer, holder, 1);
  return take_if_free(id);
}

std::shared_ptr<RemoteValue> ReferenceTable::dropped(const RefId& id, WorkerId introducer, WorkerId holder) {
  if (gone_.contains(holder) || !find(id)) return nullptr;
  Entry& entry = this->entry(id);
  if (!entry.created && introducer == id.creator && holder == id.creator) {
    // The creator has dropped it, and the call that would make the value was not sent: it would have arrived
    // before.
    entry.created = true;
    entry.value->fail(
        std::make_exception_ptr(CommError("the call that was to make this value was not made")));
    return take_if_free(id);
  }
  // The introducer has ended, perhaps before it sent the introduction. Then the holder was never counted.
  const bool never_counted = gone_.contains(introducer) && !entry.held.contains({introducer, holder});
  if (!never_counted) count(entry, introducer, holder, -1);
  return take_if_free(id);
}

std::vector<std::shared_ptr<RemoteValue>> ReferenceTable::worker_gone(WorkerId worker,
                                                                      const std::string& reason) {
  gone_.insert(worker);
  std::vector<RefId> touched;
  for (auto& [id, entry] : entries_) {
    std::erase_if(entry.held, [&](const auto& each) {
      const auto& [introducer, holder] = each.first;
      return holder == worker || (introducer == worker && each.second < 0);
    });
    if (id.creator == worker && !entry.created) {
      entry.created = true;
      entry.value->fail(std::make_exception_ptr(
          CommError(text("the worker that was to make this value has ended before: ", reason))));
    }
    touched.push_back(id);
  }
  std::vector<std::shared_ptr<RemoteValue>> freed;
  for (const RefId& id : touched) {
    if (auto value = take_if_free(id)) freed.push_back(std::move(value));
  }
  return freed;
}

std::shared_ptr<RemoteValue> ReferenceTable::find(const RefId& id) {
  const auto found = entries_.find(id);
  if (found != entries_.end()) return found->second.value;
  const auto last = last_created_.find(id.creator);
  const bool is_to_come = last == last_created_.end() || id.number > last->second;
  if (!is_to_come || gone_.contains(id.creator) || id.owner != self_) return nullptr;
  return entry(id).value;
}

std::vector<RefId> ReferenceTable::held_elsewhere() const {
  std::vector<RefId> ids;
  for (const auto& [id, entry] : entries_) {
    if (!entry.held.empty()) ids.push_back(id);
  }
  return ids;
}

void ReferenceTable::count(Entry& entry, WorkerId introducer, WorkerId holder, std::int64_t by) {
  const auto [place, is_new] = entry.held.try_emplace({introducer, holder}, 0);
  place->second += by;
  if (place->second == 0) entry.held.erase(place);
}

std::shared_ptr<RemoteValue> ReferenceTable::take_if_free(const RefId& id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return nullptr;
  const Entry& entry = found->second;
  if (!entry.created || entry.held_here > 0 || !entry.held.empty()) return nullptr;
  auto value = std::move(found->second.value);
  entries_.erase(found);
  return value;
}

}  // namespace trireme::rpc
