#include "trireme/ps/internal/partition_owner.h"

#include <algorithm>
#include <utility>

namespace trireme::ps {
namespace {

// Limits of events that came before their map: a map that one server has will soon reach all.
constexpr double kMostEarly_s = 0.5;
constexpr std::size_t kMostEarlyBytes = 64 << 20, kMostEarlyEvents = 4096;

void deliver(Partition& partition, const OwnerEvent& event, const Request& head, wire::Buffer body) {
  partition.on_request(event.connection, head, std::move(body));
}
void deliver(Partition& partition, const OwnerEvent& event, const Pull& head, const wire::Buffer& body) {
  partition.on_pull(event.connection, head, body);
}
void deliver(Partition& partition, const OwnerEvent& event, const Replicate& head, const wire::Buffer& body) {
  partition.on_replicate(event.connection, head, body);
}
void deliver(Partition& partition, const OwnerEvent& event, const ReplicateAck& head, const wire::Buffer&) {
  partition.on_replicate_ack(event.server, head);
}
void deliver(Partition& partition, const OwnerEvent& event, const SnapshotPart& head,
             const wire::Buffer& body) {
  partition.on_snapshot_part(event.connection, head, body);
}
void deliver(Partition& partition, const OwnerEvent& event, const SnapshotAck& head, const wire::Buffer&) {
  partition.on_snapshot_ack(event.server, head);
}

}  // namespace

PartitionOwner::PartitionOwner(ServerFacts& facts, const PartitionOptions& options,
                               std::function<void(OwnerOutput)> emit)
    : facts_(facts), options_(options), emit_(std::move(emit)) {}

void PartitionOwner::take(const OwnerEvent& event) {
  std::visit([&](const auto& what) { handle(event, what); }, event.what);
}

template <class Head>
void PartitionOwner::handle(const OwnerEvent& event, const Head& head) {
  if (head.epoch > members_->version && keep_early(event)) return;
  std::optional<wire::Buffer> body = whole_body(event, head);
  if (!body) return;
  const auto found = partitions_.find(head.partition);
  if (found == partitions_.end()) {
    // A server without the partition answers like one with an old epoch.
    Partition none(head.partition, *this, options_);
    return deliver(none, event, head, std::move(*body));
  }
  deliver(found->second.partition, event, head, std::move(*body));
  touch(head.partition, found->second);
}

std::optional<wire::Buffer> PartitionOwner::known_body(const OwnerEvent& event, PartitionId partition,
                                                       TableId table, std::uint64_t hash) {
  if (hash != 0) {
    const auto lists = key_lists_.find(event.connection);
    if (lists == key_lists_.end() || !has_key_list(event.body.bytes())) return std::nullopt;
    const std::span<const std::byte> keys = lists->second.find(hash);
    if (keys.size() != key_bytes_of(event.body.bytes())) return std::nullopt;
    return with_keys(event.body.bytes(), keys);
  }
  const auto spec = members_->tables.find(table);
  if (spec == members_->tables.end() || spec->second.kind == TableKind::kDense) return event.body;
  const std::uint64_t sent = hash_of_keys(partition, event.body.bytes());
  if (sent != 0)
    key_lists_[event.connection].keep(
        sent, event.body.bytes().subspan(sizeof(RowBatchHead), key_bytes_of(event.body.bytes())));
  return event.body;
}

std::optional<wire::Buffer> PartitionOwner::whole_body(const OwnerEvent& event, const Request& head) {
  if (head.keys == 0 && head.op != RequestOp::kPush && head.op != RequestOp::kAssign) return event.body;
  auto body = known_body(event, head.partition, head.table, head.keys);
  if (!body)
    reply(event.connection, {.partition = head.partition,
                             .sequence = head.sequence,
                             .incarnation = head.life.incarnation,
                             .error = ErrorKind::kUnknownKeys});
  return body;
}

std::optional<wire::Buffer> PartitionOwner::whole_body(const OwnerEvent& event, const Pull& head) {
  if (!head.save_in.empty()) return event.body;
  auto body = known_body(event, head.partition, head.table, head.keys);
  if (!body)
    answer(
        event.connection,
        message_of(PullReply{.request = head.request, .error = ErrorKind::kUnknownKeys, .changed = false}));
  return body;
}

void PartitionOwner::handle(const OwnerEvent& event, const Ticks& ticks) {
  for (const Ticks::Tick& tick : ticks.ticks) {
    OwnerEvent one(ticks.request(tick));
    one.connection = event.connection;
    take(one);
  }
}

bool PartitionOwner::keep_early(const OwnerEvent& event) {
  const std::size_t bytes = event.num_bytes();
  if (takes_early_ || early_.size() >= kMostEarlyEvents || early_bytes_ + bytes > kMostEarlyBytes)
    return false;
  if (early_.empty()) emit_(StaleMap{});
  early_bytes_ += bytes;
  early_.push_back({event.what, event.connection, event.server, event.body, now_ns()});
  return true;
}

void PartitionOwner::take_early() {
  early_bytes_ = 0;
  takes_early_ = true;
  for (Early& early : std::exchange(early_, {})) {
    OwnerEvent event(std::move(early.what));
    event.connection = early.connection;
    event.server = early.server;
    event.body = std::move(early.body);
    take(event);
  }
  takes_early_ = false;
}

void PartitionOwner::handle(const OwnerEvent&, const MapEvent& map) {
  members_ = map.members;
  std::erase_if(lines_, [&](const auto& line) { return !members_->servers.contains(line.first); });
  for (const auto& [id, entry] : map.partitions) {
    const bool has_role =
        map.self != kNoServer &&
        (entry.learner == map.self || std::count(entry.chain.begin(), entry.chain.end(), map.self) > 0);
    if (!has_role && !partitions_.contains(id)) continue;
    OwnedPartition& owned =
        partitions_.try_emplace(id, OwnedPartition{Partition(id, *this, options_)}).first->second;
    owned.partition.on_map(entry, map.self);
    if (has_role) {
      touch(id, owned);
      continue;
    }
    if (owned.reported != 0) emit_(StableVersions{{{id, 0}}});
    partitions_.erase(id);
    std::erase(touched_, id);
    std::erase(ticking_, id);
  }
  if (map.has_lost_workers) {
    for (auto& [id, owned] : partitions_) touch(id, owned);  // some wait for lost workers
  }
  take_early();
}

void PartitionOwner::handle(const OwnerEvent& event, const ConnectedEvent&) {
  lines_[event.server].is_connected = true;
  // An idle partition has no pending answers, and nothing to send again.
  for (const PartitionId id : ticking_) {
    const auto found = partitions_.find(id);
    if (found != partitions_.end()) found->second.partition.on_server_connected(event.server);
  }
}

void PartitionOwner::handle(const OwnerEvent& event, const ClosedEvent&) {
  if (event.server != kNoServer) lines_[event.server].is_connected = false;
  key_lists_.erase(event.connection);
  std::erase_if(early_, [&](const Early& early) { return early.connection == event.connection; });
  for (const PartitionId id : ticking_) {
    const auto found = partitions_.find(id);
    if (found != partitions_.end()) found->second.partition.on_worker_closed(event.connection);
  }
}

void PartitionOwner::handle(const OwnerEvent&, const TickEvent&) {
  const auto longest = static_cast<std::int64_t>(kMostEarly_s * 1e9);
  if (!early_.empty() && now_ns() > early_.front().since_ns + longest) take_early();
  go_on();
  std::vector<PartitionVersion> versions;
  for (const PartitionId id : std::exchange(ticking_, {})) {
    const auto found = partitions_.find(id);
    if (found == partitions_.end()) continue;
    OwnedPartition& owned = found->second;
    owned.partition.on_tick();
    owned.partition.go_on();
    report_stable(id, owned, versions);
    owned.is_ticking = !owned.partition.is_idle();
    if (owned.is_ticking) ticking_.push_back(id);
  }
  send_replies();
  if (!versions.empty()) emit_(StableVersions{std::move(versions)});
}

void PartitionOwner::report_stable(PartitionId id, OwnedPartition& owned,
                                   std::vector<PartitionVersion>& versions) {
  const Replica& replica = owned.partition.replica();
  const Version stable = replica.is_primary() ? replica.stable() : 0;
  if (stable != std::exchange(owned.reported, stable)) versions.push_back({id, stable});
}

void PartitionOwner::touch(PartitionId id, OwnedPartition& owned) {
  if (!std::exchange(owned.is_touched, true)) touched_.push_back(id);
  if (!std::exchange(owned.is_ticking, true)) ticking_.push_back(id);
}

void PartitionOwner::go_on() {
  for (const PartitionId id : std::exchange(touched_, {})) {
    const auto found = partitions_.find(id);
    if (found == partitions_.end()) continue;
    found->second.is_touched = false;
    found->second.partition.go_on();
  }
  send_replies();
}

void PartitionOwner::send_replies() {
  for (auto& [to, replies] : std::exchange(replies_, {})) {
    if (replies.size() == 1)
      emit_(PendingReply{to, message_of(replies.front())});
    else
      emit_(PendingReply{to, message_of(Replies{std::move(replies)})});
  }
}

void PartitionOwner::to_server(ServerId server, wire::Message message) {
  Line& line = lines_[server];
  if (!line.is_connected) {
    // The message is lost anyway, and is sent again once there is a connection. One message per interval
    // requests it.
    if (now_ns() < line.next_call_ns) return;
    line.next_call_ns = now_ns() + static_cast<std::int64_t>(options_.replication.retry_s * 1e9);
  }
  emit_(ServerMessage{server, std::move(message)});
}

bool PartitionOwner::may_copy(std::size_t bytes) {
  if (facts_.copy_budget_bytes.load() <= 0) return false;
  facts_.copy_budget_bytes -= static_cast<std::int64_t>(bytes);
  facts_.bytes_copied += bytes;
  return true;
}

HeldStatus PartitionOwner::status() const {
  HeldStatus status;
  status.counts = counts_;
  for (const auto& [id, owned] : partitions_) {
    const Replica& replica = owned.partition.replica();
    const Version version = replica.state().version();
    if (replica.is_learner())
      status.learner.add(version, 0);
    else
      (replica.is_primary() ? status.primary : status.backup).add(version, replica.num_under_way());
    if (const auto received = replica.learner_received())
      status.feeding.add(*received, version - std::min(version, *received));
    if (const auto lacks = replica.next_lacks()) {
      Version& most = status.lag[lacks->first];
      most = std::max(most, lacks->second);
    }
    const PartitionState::Size size = replica.state().size();
    status.rows += size.rows;
    status.elements += size.elements;
    status.bytes += size.bytes;
    status.parked_pulls += owned.partition.num_parked_pulls();
  }
  return status;
}

ReplicaReport PartitionOwner::report(PartitionId id) const {
  const auto found = partitions_.find(id);
  if (found == partitions_.end()) return {};
  const Replica& replica = found->second.partition.replica();
  return {.holds_all = replica.holds_all(),
          .is_primary = replica.is_primary(),
          .epoch = replica.epoch(),
          .version = replica.state().version(),
          .digest = replica.state().digest()};
}

}  // namespace trireme::ps
