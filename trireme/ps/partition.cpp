#include "trireme/ps/internal/partition.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <utility>

#include "trireme/compress/codec.h"
#include "trireme/ps/internal/float_bytes.h"
#include "trireme/ps/internal/hash.h"
#include "trireme/ps/internal/row_batch.h"

namespace trireme::ps {
namespace {

// Limits per connection.
constexpr std::size_t kMostWaitingPulls = 4096, kMostWaitingKeyBytes = 64 << 20;

}  // namespace

void Partition::on_map(const PartitionEntry& entry, ServerId self) {
  if (entry.epoch > replica_.epoch()) {
    // Requesters repeat their requests when they see the new epoch.
    waiting_.clear();
    unacknowledged_.clear();
    waiting_pulls_.clear();
    ready_pulls_.clear();
    replica_.adopt(entry, self);
    draining_ = entry.draining;
  }
}

ErrorKind Partition::rejection(const Request& request, wire::Buffer& body) const {
  if (!changes_values(request.op)) return body.empty() ? ErrorKind::kNone : ErrorKind::kMalformed;
  const bool is_rate = request.lr == kTableRate || (std::isfinite(request.lr) && request.lr >= 0);
  if (!is_rate) return ErrorKind::kMalformed;
  const auto found = outbox_.map().tables.find(request.table);
  if (found == outbox_.map().tables.end()) return ErrorKind::kUnknownTable;
  const TableSpec& spec = found->second;
  const compress::Codec* encoding =
      request.op == RequestOp::kPush ? compress::codec(spec.compression.push) : nullptr;
  if (encoding != nullptr && spec.kind == TableKind::kDense) {
    if (request.chunk >= spec.num_chunks()) return ErrorKind::kOutOfRange;
    return encoding->fits(body.bytes(), spec.elements_of(request.chunk)) ? ErrorKind::kNone
                                                                         : ErrorKind::kMalformed;
  }
  if (encoding != nullptr) {
    auto rows = decoded_rows(*encoding, body.bytes(), spec.rows.elements);
    if (!rows) return ErrorKind::kMalformed;
    body = std::move(*rows);
  }
  return PartitionState::rejection(spec, request.op, request.chunk, body.bytes());
}

ErrorKind Partition::rejection(const Pull& pull, const wire::Buffer& body) const {
  if (!pull.save_in.empty())
    return body.empty() && pull.save_in.size() <= PATH_MAX ? ErrorKind::kNone : ErrorKind::kMalformed;
  const auto found = outbox_.map().tables.find(pull.table);
  if (found == outbox_.map().tables.end()) return ErrorKind::kUnknownTable;
  return PartitionState::rejection(found->second, pull, body.bytes());
}

ErrorKind Partition::membership_error(const Request& request) const {
  const ClusterMap& map = outbox_.map();
  if (map.version < request.registered_at) return ErrorKind::kNotNow;
  return map.lives(request.life) ? ErrorKind::kNone : ErrorKind::kDeclaredDead;
}

void Partition::on_request(wire::ConnectionId from, const Request& request, wire::Buffer body) {
  const Requester requester = {from, request.life, request.sequence};
  if (!replica_.is_primary() || request.epoch != replica_.epoch()) {
    if (request.epoch > replica_.epoch()) outbox_.map_is_old();
    return reply(requester, ErrorKind::kWrongEpoch, 0);
  }
  if (draining_) return reply(requester, ErrorKind::kNotNow, 0);
  if (const ErrorKind error = membership_error(request); error != ErrorKind::kNone)
    return reply(requester, error, 0);
  const std::size_t num_bytes = body.size();  // bytes as received
  if (const ErrorKind error = rejection(request, body); error != ErrorKind::kNone)
    return reply(requester, error, 0);

  const WorkerState* worker = replica_.state().worker(request.life);
  if (worker != nullptr && worker->window.contains(request.sequence)) {
    const Version version = replica_.version_of(request.life, request.sequence);
    if (version == 0) return reply(requester, ErrorKind::kNone, replica_.stable());
    unacknowledged_[version].push_back(requester);
    return;
  }
  const Sequence taken = worker == nullptr ? 0 : worker->window.contiguous();
  if (request.sequence == 0 || request.sequence > taken + SequenceWindow::kReach)
    return reply(requester, ErrorKind::kOverloaded, 0);
  if (changes_values(request.op)) {
    const bool is_new = !waiting_.contains({request.life, request.sequence});
    outbox_.counts().pushes += is_new ? 1 : 0;
    outbox_.counts().push_bytes += is_new ? num_bytes : 0;
  }
  waiting_[{request.life, request.sequence}] = {from, request, std::move(body)};
}

void Partition::on_pull(wire::ConnectionId from, const Pull& pull, const wire::Buffer& body) {
  if (!replica_.is_primary() || pull.epoch != replica_.epoch()) {
    if (pull.epoch > replica_.epoch()) outbox_.map_is_old();
    return reply(from, pull, ErrorKind::kWrongEpoch);
  }
  if (draining_) return reply(from, pull, ErrorKind::kNotNow);
  if (const ErrorKind error = rejection(pull, body); error != ErrorKind::kNone)
    return reply(from, pull, error);
  const auto same = [&](const auto& other, RequestId request) {
    return other.connection == from && request == pull.request;
  };
  std::size_t num_waiting = 0, key_bytes = body.size();
  for (const WaitingPull& other : waiting_pulls_) {
    if (same(other, other.pull.request)) return;
    if (other.connection != from) continue;
    ++num_waiting;
    key_bytes += other.keys.size();
  }
  for (const ReadyPull& other : ready_pulls_) {
    if (same(other, other.reply.request)) return;
  }
  // Above the limit the sender repeats the pull later, so that pulls do not fill this server's memory.
  if (num_waiting >= kMostWaitingPulls || key_bytes > kMostWaitingKeyBytes)
    return reply(from, pull, ErrorKind::kOverloaded);
  waiting_pulls_.push_back({from, pull, body});
}

void Partition::on_replicate(wire::ConnectionId from, const Replicate& head, const wire::Buffer& body) {
  replica_.on_replicate(from, head, body);
}

void Partition::on_replicate_ack(ServerId from, const ReplicateAck& ack) { replica_.on_ack(from, ack); }

void Partition::on_snapshot_part(wire::ConnectionId from, const SnapshotPart& head,
                                 const wire::Buffer& body) {
  replica_.on_snapshot_part(from, head, body);
}

void Partition::on_snapshot_ack(ServerId from, const SnapshotAck& ack) {
  replica_.on_snapshot_ack(from, ack);
}

void Partition::on_server_connected(ServerId server) { replica_.on_connected(server); }

void Partition::on_worker_closed(wire::ConnectionId connection) {
  std::erase_if(waiting_pulls_, [&](const WaitingPull& pull) { return pull.connection == connection; });
  std::erase_if(ready_pulls_, [&](const ReadyPull& pull) { return pull.connection == connection; });
}

void Partition::on_tick() { replica_.on_tick(); }

bool Partition::is_idle() const {
  const bool has_answered_all =
      waiting_.empty() && unacknowledged_.empty() && waiting_pulls_.empty() && ready_pulls_.empty();
  return has_answered_all && !draining_ && replica_.is_idle();
}

void Partition::go_on() {
  if (!replica_.is_primary()) return;
  if (!draining_) log_waiting();
  acknowledge_stable();
  look_at_pulls();
  answer_pulls();
  if (draining_ && replica_.num_under_way() == 0)
    outbox_.to_coordinator(message_of(Drained{{id_, replica_.epoch(), kNoServer}}));
}

void Partition::log_waiting() {
  while (replica_.num_under_way() < options_.most_under_way) {
    auto next = next_record(replica_.state(), outbox_.map(), waiting_);
    if (!next) break;
    const std::vector<WorkerLife> removed = next->entry.record.removed;
    const std::int64_t began_ns = outbox_.now_ns();
    replica_.append(std::move(next->entry));
    PartitionCounts& counts = outbox_.counts();
    counts.apply_ns += static_cast<std::uint64_t>(outbox_.now_ns() - began_ns);
    ++counts.records;
    counts.requests_per_record.add(next->taken.size());
    for (const auto& key : next->taken) {
      const auto found = waiting_.find(key);
      unacknowledged_[replica_.state().version()].push_back(
          {found->second.connection, key.first, key.second});
      waiting_.erase(found);
    }
    for (const WorkerLife& life : removed)
      std::erase_if(waiting_, [&](const auto& waiting) { return waiting.first.first == life; });
  }
}

void Partition::acknowledge_stable() {
  while (!unacknowledged_.empty() && unacknowledged_.begin()->first <= replica_.stable()) {
    const auto [version, requesters] = *unacknowledged_.begin();
    unacknowledged_.erase(unacknowledged_.begin());
    for (const Requester& requester : requesters) reply(requester, ErrorKind::kNone, version);
  }
}

bool Partition::may_be_answered(const Pull& pull) const {
  const std::uint32_t staleness = pull.save_in.empty() ? outbox_.map().tables.at(pull.table).staleness : 0;
  const bool in_step = staleness == kAsynchronous || replica_.state().min_clock() + staleness >= pull.clock;
  if (!in_step || pull.after == 0) return in_step;
  const WorkerState* worker = replica_.state().worker(pull.life);
  return worker != nullptr && worker->window.contains(pull.after);
}

void Partition::look_at_pulls() {
  for (auto pull = waiting_pulls_.begin(); pull != waiting_pulls_.end();) {
    if (!may_be_answered(pull->pull)) {
      ++pull;
      continue;
    }
    read(*pull);
    pull = waiting_pulls_.erase(pull);
  }
}

/// All pulls of one version of a chunk get the same bytes.
wire::Buffer Partition::encoded(const TableSpec& spec, const Pull& pull,
                                const PartitionState::Contents& contents) const {
  const compress::Codec* encoding = pull.with_state ? nullptr : compress::codec(spec.compression.pull);
  if (encoding == nullptr) return contents.values;
  const std::uint64_t seed = hash_number(contents.changed_at, hash_number(pull.chunk, spec.seed));
  return in_buffer(*encoding, AlignedFloats(contents.values.bytes()).get(), {.seed = seed});
}

/// Reads the current values; they are sent once this version is stable.
void Partition::read(const WaitingPull& waiting) {
  if (!waiting.pull.save_in.empty()) {
    PartContents part = replica_.state().contents();
    part.folder = waiting.pull.save_in;
    part.header.partition = id_;
    part.header.epoch = replica_.epoch();
    ready_pulls_.push_back({.connection = waiting.connection,
                            .reply = {.request = waiting.pull.request,
                                      .epoch = replica_.epoch(),
                                      .version = replica_.state().version(),
                                      .min_clock = replica_.state().min_clock()},
                            .values = {},
                            .life = waiting.pull.life,
                            .part = std::move(part)});
    return;
  }
  const TableSpec& spec = outbox_.map().tables.at(waiting.pull.table);
  const PartitionState::Contents contents = replica_.state().read(spec, waiting.pull, waiting.keys);
  const WorkerClock min_clock = replica_.state().min_clock();
  outbox_.counts().staleness.add(waiting.pull.clock - std::min(waiting.pull.clock, min_clock));
  const bool changed = waiting.pull.newer_than == 0 || contents.changed_at > waiting.pull.newer_than;
  ready_pulls_.push_back({.connection = waiting.connection,
                          .reply = {.request = waiting.pull.request,
                                    .changed = changed,
                                    .epoch = replica_.epoch(),
                                    .version = replica_.state().version(),
                                    .min_clock = replica_.state().min_clock(),
                                    .num_updates = contents.num_updates},
                          .values = changed ? encoded(spec, waiting.pull, contents) : wire::Buffer{},
                          .life = waiting.pull.life,
                          .priority = waiting.pull.priority});
}

void Partition::answer_pulls() {
  if (ready_pulls_.empty()) return;
  if (!replica_.is_confirmed()) return replica_.confirm();
  while (!ready_pulls_.empty() && ready_pulls_.front().reply.version <= replica_.stable()) {
    ReadyPull& ready = ready_pulls_.front();
    ++outbox_.counts().pulls;
    outbox_.counts().pull_bytes += ready.values.size();
    if (ready.part)
      outbox_.save({ready.connection, ready.life, ready.reply, std::move(*ready.part)});
    else
      outbox_.answer(ready.connection, message_of(ready.reply, ready.values, ready.priority));
    ready_pulls_.pop_front();
  }
}

void Partition::reply(const Requester& requester, ErrorKind error, Version version) const {
  if (error != ErrorKind::kNone) ++outbox_.counts().rejected[error];
  const Reply head = {.partition = id_,
                      .sequence = requester.sequence,
                      .incarnation = requester.life.incarnation,
                      .error = error,
                      .epoch = replica_.epoch(),
                      .version = version,
                      .min_clock = replica_.state().min_clock()};
  outbox_.reply(requester.connection, head);
}

void Partition::reply(wire::ConnectionId to, const Pull& pull, ErrorKind error) const {
  ++outbox_.counts().rejected[error];
  const PullReply head = {
      .request = pull.request, .error = error, .changed = false, .epoch = replica_.epoch()};
  outbox_.answer(to, message_of(head));
}

}  // namespace trireme::ps
