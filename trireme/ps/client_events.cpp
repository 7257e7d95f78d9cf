#include <algorithm>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/ps/internal/client_work.h"
#include "trireme/ps/internal/sequence_window.h"

namespace trireme::ps {

void ClientWork::on_timer() {
  end_overdue();
  look_around();
  go_on();
  surroundings_->start_timer(options_.tick_s);
}

void ClientWork::on_connected(wire::ConnectionId connection) {
  trouble_.clear();
  if (!membership_.on_connected(connection)) {
    for (auto& [server, line] : lines_) line.is_connected |= line.connection == connection;
  }
  go_on();
}

void ClientWork::on_closed(wire::ConnectionId connection, const std::string& reason) {
  trouble_ = reason;
  if (membership_.on_closed(connection)) {
    for (auto& [id, creation] : creations_) creation.sent_ns = 0;
    return;
  }
  for (auto line = lines_.begin(); line != lines_.end(); ++line) {
    if (line->second.connection != connection) continue;
    const ServerId server = line->first;
    lines_.erase(line);
    sent_keys_.erase(connection);
    return send_again([&](PartitionId id) { return map().partitions[id].primary() == server; });
  }
}

void ClientWork::on_message(wire::ConnectionId connection, const wire::Message& message) {
  if (membership_.is_coordinator(connection)) {
    on_coordinator(message);
  } else if (const auto reply = head_of<Reply>(message)) {
    on_reply(*reply);
  } else if (const auto several = head_of<Replies>(message)) {
    for (const Reply& each : several->replies) on_reply(each);
  } else if (const auto pulled = head_of<PullReply>(message)) {
    on_pulled(*pulled, message.body);
  }
  go_on();
}

std::shared_ptr<Call> ClientWork::new_call(Done done, std::size_t num_parts, const CallOptions& options) {
  const double timeout_s = options.timeout_s > 0 ? options.timeout_s : options_.timeout_s;
  const std::int64_t due = surroundings_->now_ns() + in_ns(timeout_s);
  return calls_.emplace_back(std::make_shared<Call>(std::move(done), num_parts, due, timeout_s));
}

Result ClientWork::at_clock() const {
  Result result;
  result.min_clock = clock_;
  return result;
}

void ClientWork::fail(const Done& done, ErrorKind error, const std::string& message) {
  Result result;
  result.error = error;
  result.message = message;
  done(result);
}

const TableSpec* ClientWork::find(TableId table, const Done& done) {
  if (has_ended_) {
    fail(done, ErrorKind::kDeclaredDead, "this worker does not take part any more");
    return nullptr;
  }
  const auto found = map().tables.find(table);
  if (found != map().tables.end()) return &found->second;
  fail(done, ErrorKind::kUnknownTable, text("there is no table ", table));
  return nullptr;
}

const TableSpec* ClientWork::find(TableId table, TableKind kind, const Done& done) {
  const TableSpec* spec = find(table, done);
  if (spec == nullptr || spec->kind == kind) return spec;
  const bool is_sparse = spec->kind == TableKind::kSparse;
  fail(done, ErrorKind::kOutOfRange,
       text("table ", spec->name, " is ", is_sparse ? "sparse" : "dense", ": use ",
            is_sparse ? "push_rows, pull_rows and assign_rows" : "push, pull and assign"));
  return nullptr;
}

std::set<PartitionId> ClientWork::partitions_of(const TableSpec& spec) const {
  std::set<PartitionId> partitions;
  // A key may belong to any partition. A partition does not wait for workers that have not joined it.
  for (PartitionId id = 0; spec.kind == TableKind::kSparse && id < map().partitions.size(); ++id)
    partitions.insert(id);
  for (std::uint64_t chunk = 0; chunk < spec.num_chunks(); ++chunk)
    partitions.insert(map().partition_of(spec.id, chunk));
  return partitions;
}

void ClientWork::on_coordinator(const wire::Message& message) {
  if (const auto created = head_of<TableCreated>(message)) {
    const auto found = creations_.find(created->request);
    if (found == creations_.end()) return;
    found->second.table = created->table;
    if (created->rejection.empty()) return;
    const auto call = found->second.call;
    creations_.erase(found);
    return call->fail(ErrorKind::kOutOfRange, created->rejection);
  }
  std::map<PartitionId, Epoch> epochs;
  for (const auto& [id, lane] : lanes_) epochs[id] = epoch_of(id);
  for (const auto& [id, pull] : pulls_) epochs[pull.head.partition] = epoch_of(pull.head.partition);
  const Membership::Taken taken = membership_.take(message);
  if (taken == Membership::Taken::kMap) {
    const auto worker = map().workers.find(life_.worker);
    if (registered_at_ == 0 && map().lives(life_)) registered_at_ = worker->second.registered_at;
    send_again([&](PartitionId id) { return epochs.contains(id) && epochs.at(id) != epoch_of(id); });
    find_lost();
    find_begun_anew();
  } else if (taken == Membership::Taken::kReply) {
    if (membership_.last_reply().declared_dead) end(ErrorKind::kDeclaredDead, kDeclaredDeadText);
    while (barrier_passed_ < membership_.last_reply().barrier_open && !barriers_.empty()) {
      ++barrier_passed_;
      const auto call = barriers_.front();
      barriers_.pop_front();
      call->part_done(at_clock());
    }
  }
}

Epoch ClientWork::epoch_of(PartitionId id) const {
  return id < map().partitions.size() ? map().partitions[id].epoch : 0;
}

void ClientWork::find_lost() {
  for (PartitionId id = 0; id < map().partitions.size(); ++id) {
    const PartitionEntry& entry = map().partitions[id];
    if (!entry.lost) continue;
    const auto lane = lanes_.find(id);
    const Version last = std::max(entry.lost_version, lane == lanes_.end() ? 0 : lane->second.last_version);
    const std::string message =
        text("partition ", id, ": all its replicas have ended, and its versions 1 to ", last,
             " with them: resume from a checkpoint");
    if (lane != lanes_.end()) {
      for (auto& [sequence, request] : std::exchange(lane->second.requests, {})) {
        if (request.takes_credit && request.sent_ns != 0) bytes_under_way_ -= request.body.size();
        if (request.call) request.call->fail(ErrorKind::kDataLoss, message);
      }
    }
    std::vector<std::shared_ptr<Call>> failed;
    std::erase_if(pulls_, [&](const auto& pull) {
      if (pull.second.head.partition != id) return false;
      failed.push_back(pull.second.call);
      return true;
    });
    for (const auto& call : failed) call->fail(ErrorKind::kDataLoss, message);
  }
}

}  // namespace trireme::ps
