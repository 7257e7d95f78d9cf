#include <algorithm>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/ps/internal/client_work.h"
#include "trireme/ps/internal/sequence_window.h"

namespace trireme::ps {
namespace {

constexpr double kAgain_s = 0.1;  // delay before a request that was rejected for now is repeated

}  // namespace

void ClientWork::start(wire::Surroundings& surroundings) {
  surroundings_ = &surroundings;
  life_ = {options_.worker, surroundings.random()};
  membership_.start(surroundings);
  on_timer();
}

void ClientWork::wait_until_member(Done done) {
  membership_calls_.push_back(new_call(std::move(done), 1));
  go_on();
}

void ClientWork::create_table(const TableSpec& spec, Done done) {
  const RequestId id = ++last_request_;
  creations_[id] = {spec, new_call(std::move(done), 1), 0, 0};
  go_on();
}

void ClientWork::join(TableId table, Done done) {
  const TableSpec* spec = find(table, done);
  if (spec == nullptr) return;
  const std::set<PartitionId> partitions = partitions_of(*spec);
  std::vector<PartitionId> missing;
  for (const PartitionId id : partitions) {
    if (!lanes_.contains(id)) missing.push_back(id);
  }
  const auto call = new_call(
      [this, done = std::move(done)](const Result& result) {
        // The worker starts at the highest clock of all partitions that it has joined.
        if (result.error == ErrorKind::kNone) tick_all();
        Result mine = result;
        mine.min_clock = std::min(result.min_clock, clock_);
        done(mine);
      },
      std::max<std::size_t>(missing.size(), 1));
  if (missing.empty()) return call->part_done(at_clock());
  for (const PartitionId id : missing) add(id, request_of(RequestOp::kJoin), {}, call);
  go_on();
}

void ClientWork::push_chunk(TableId table, std::uint64_t chunk, wire::Buffer values, Done done,
                            PushOptions options) {
  const TableSpec* spec = find(table, TableKind::kDense, done);
  if (spec == nullptr) return;
  if (chunk >= spec->num_chunks() || values.size() != spec->elements_of(chunk) * sizeof(float))
    return fail(done, ErrorKind::kOutOfRange,
                text("push of ", values.size(), " bytes to chunk ", chunk, " of table ", spec->name,
                     ", which has ", spec->num_chunks(), " chunks"));
  if (!leaves_room(*spec, RequestOp::kPush, {{map().partition_of(table, chunk), 1}}, done)) return;
  Request request = request_of(RequestOp::kPush, table, chunk);
  request.lr = options.lr;
  add_values(place_of(*spec, chunk), request, *spec, std::move(values), options.priority,
             new_call(std::move(done), 1, options.call()));
  go_on();
}

void ClientWork::restore_chunk(TableId table, std::uint64_t chunk, wire::Buffer values_and_state,
                               std::uint64_t num_updates, Done done) {
  const TableSpec* spec = find(table, TableKind::kDense, done);
  if (spec == nullptr) return;
  if (chunk >= spec->num_chunks())
    return fail(done, ErrorKind::kOutOfRange, text("table ", spec->name, " has no chunk ", chunk));
  Request request = request_of(RequestOp::kAssign, table, chunk);
  request.num_updates = num_updates;
  add_values(place_of(*spec, chunk), request, *spec, std::move(values_and_state), {},
             new_call(std::move(done), 1));
  go_on();
}

void ClientWork::add_whole(RequestOp op, TableId table, const wire::Buffer& values, Done done,
                           PushOptions options) {
  const TableSpec* spec = find(table, TableKind::kDense, done);
  if (spec == nullptr) return;
  if (values.size() != spec->num_elements * sizeof(float))
    return fail(done, ErrorKind::kOutOfRange,
                text("push of ", values.size(), " bytes to table ", spec->name, ", which has ",
                     spec->num_elements, " elements"));
  std::map<PartitionId, std::size_t> more;
  for (std::uint64_t chunk = 0; chunk < spec->num_chunks(); ++chunk) ++more[map().partition_of(table, chunk)];
  if (!leaves_room(*spec, op, more, done)) return;
  const auto call = new_call(std::move(done), spec->num_chunks(), options.call());
  for (std::uint64_t chunk = 0; chunk < spec->num_chunks(); ++chunk) {
    const std::size_t first = chunk * spec->chunk_elements * sizeof(float);
    Request request = request_of(op, table, chunk);
    request.lr = options.lr;
    add_values(place_of(*spec, chunk), request, *spec,
               values.part(first, spec->elements_of(chunk) * sizeof(float)), options.priority, call);
  }
  go_on();
}

void ClientWork::pull_chunk(TableId table, std::uint64_t chunk, const ChunkPull& wanted, Done done,
                            CallOptions options) {
  const TableSpec* spec = find(table, TableKind::kDense, done);
  if (spec == nullptr) return;
  if (chunk >= spec->num_chunks())
    return fail(done, ErrorKind::kOutOfRange,
                text("pull of chunk ", chunk, " of table ", spec->name, ", which has ", spec->num_chunks(),
                     " chunks"));
  if (!wanted.out.empty() && wanted.out.size() != spec->elements_of(chunk))
    return fail(done, ErrorKind::kOutOfRange,
                text("pull of ", wanted.out.size(), " elements of chunk ", chunk, " of table ", spec->name,
                     ", which has ", spec->elements_of(chunk)));
  OutgoingPull& pull =
      add_pull(place_of(*spec, chunk), *spec, new_call(std::move(done), 1, options), options);
  pull.head.chunk = chunk;
  pull.head.newer_than = wanted.newer_than;
  pull.head.with_state = wanted.with_state;
  pull.out = wanted.out;
  pull.num_values = spec->elements_of(chunk);
  if (wanted.with_state) pull.codec = nullptr;
  go_on();
}

void ClientWork::pull(TableId table, std::span<float> out, Done done, CallOptions options) {
  const TableSpec* spec = find(table, TableKind::kDense, done);
  if (spec == nullptr) return;
  if (out.size() != spec->num_elements)
    return fail(
        done, ErrorKind::kOutOfRange,
        text("pull of ", out.size(), " elements of table ", spec->name, ", which has ", spec->num_elements));
  const auto call = new_call(std::move(done), spec->num_chunks(), options);
  for (std::uint64_t chunk = 0; chunk < spec->num_chunks(); ++chunk) {
    OutgoingPull& pull = add_pull(place_of(*spec, chunk), *spec, call, options);
    pull.head.chunk = chunk;
    pull.out = out.subspan(chunk * spec->chunk_elements, spec->elements_of(chunk));
    pull.num_values = pull.out.size();
  }
  go_on();
}

void ClientWork::tick() {
  ++clock_;
  tick_all();
  go_on();
}

void ClientWork::barrier(std::uint32_t num_workers, Done done) {
  barriers_.push_back(new_call(std::move(done), 1));
  ++barrier_entered_;
  barrier_workers_ = num_workers;
  membership_.beat_soon();
  go_on();
}

void ClientWork::leave(Done done) {
  const auto call = new_call(std::move(done), lanes_.size() + 1);
  for (const auto& [id, lane] : lanes_) add(id, request_of(RequestOp::kLeave), {}, call);
  leave_call_ = call;
  go_on();
}

OutgoingRequest& ClientWork::add(PartitionId id, Request request, wire::Buffer body,
                                 std::shared_ptr<Call> call) {
  Lane& lane = lanes_[id];
  if (lane.last == 0 && request.op != RequestOp::kJoin) {
    lane.begun = map().partitions[id].begun;
    add(id, request_of(RequestOp::kJoin), {}, nullptr);
    if (clock_ > 0) add(id, request_of(RequestOp::kTick), {}, nullptr);
  }
  request.partition = id;
  request.life = life_;
  request.sequence = ++lane.last;
  request.clock = clock_;
  if (request.op == RequestOp::kJoin) request.num_workers = options_.num_workers;
  OutgoingRequest& outgoing = lane.requests[request.sequence];
  outgoing.head = request;
  outgoing.body = std::move(body);
  outgoing.call = std::move(call);
  unsent_lanes_.insert(id);
  return outgoing;
}

Request ClientWork::request_of(RequestOp op, TableId table, std::uint64_t chunk) {
  Request request;
  request.op = op;
  request.table = table;
  request.chunk = chunk;
  return request;
}

bool ClientWork::leaves_room(const TableSpec& spec, RequestOp op,
                             const std::map<PartitionId, std::size_t>& more, const Done& done) {
  if (!waits_for_clock(spec, op)) return true;
  constexpr std::size_t kForOthers = 8;  // reserved to join, to end the step, to leave
  for (const auto& [id, count] : more) {
    std::size_t held = count;
    if (const auto lane = lanes_.find(id); lane != lanes_.end()) {
      for (const auto& [sequence, request] : lane->second.requests) {
        const auto table = map().tables.find(request.head.table);
        held += table != map().tables.end() && waits_for_clock(table->second, request.head.op) ? 1 : 0;
      }
    }
    if (held + kForOthers <= kMostAhead) continue;
    fail(
        done, ErrorKind::kTooLarge,
        text("table ", spec.name, " would have ", held, " pushes waiting for the end of a step in partition ",
             id, ", of which at most ", kMostAhead - kForOthers,
             " may: give the cluster more partitions (trireme serve-coordinator --partitions)"));
    return false;
  }
  return true;
}

void ClientWork::add_values(const Place& place, const Request& request, const TableSpec& spec,
                            wire::Buffer values, wire::Priority priority, std::shared_ptr<Call> call) {
  if (request.op == RequestOp::kPush) {
    values =
        spec.delay.lambda > 0 ? with_base(spec, place.part, values) : encoded(spec, place, std::move(values));
  } else {  // error feedback and bases belong to the replaced values
    residuals_.erase({spec.id, place.part});
    bases_.erase({spec.id, place.part});
  }
  OutgoingRequest& outgoing = add(place.partition, request, std::move(values), std::move(call));
  outgoing.priority = priority;
  if (spec.kind == TableKind::kSparse && request.op != RequestOp::kRestoreRows &&
      is_mostly_keys(outgoing.body.bytes()))
    outgoing.keys = hash_of_keys(place.partition, outgoing.body.bytes());
  // A push that waits for all workers' clocks takes no credit: otherwise it could block the requests that
  // advance the clock.
  const bool waits = waits_for_clock(spec, request.op);
  outgoing.takes_credit = !waits;
  if (!waits) last_pushes_[{spec.id, place.part}] = outgoing.head.sequence;
}

OutgoingPull& ClientWork::add_pull(const Place& place, const TableSpec& spec, std::shared_ptr<Call> call,
                                   const CallOptions& options) {
  const RequestId id = ++last_request_;
  const auto after = last_pushes_.find({spec.id, place.part});
  OutgoingPull& pull = pulls_[id];
  unsent_pulls_.insert(id);
  pull.head = {.request = id,
               .partition = place.partition,
               .life = life_,
               .clock = clock_,
               .after = after == last_pushes_.end() ? 0 : after->second,
               .table = spec.id,
               .priority = options.priority};
  pull.call = std::move(call);
  pull.codec = compress::codec(spec.compression.pull);
  return pull;
}

void ClientWork::tick_all() {
  for (auto& [id, lane] : lanes_) add(id, request_of(RequestOp::kTick), {}, nullptr);
}

void ClientWork::on_reply(const Reply& reply) {
  const auto lane = lanes_.find(reply.partition);
  if (lane == lanes_.end() || reply.incarnation != life_.incarnation) return;
  const auto found = lane->second.requests.find(reply.sequence);
  if (found == lane->second.requests.end()) return;
  seen_clock_ = std::max(seen_clock_, reply.min_clock);
  if (reply.error == ErrorKind::kNone) {
    const OutgoingRequest request = std::move(found->second);
    lane->second.requests.erase(found);
    lane->second.last_version = std::max(lane->second.last_version, reply.version);
    if (request.takes_credit && request.sent_ns != 0) bytes_under_way_ -= request.body.size();
    if (request.head.op == RequestOp::kJoin) clock_ = std::max(clock_, reply.min_clock);
    Result result;
    result.version = reply.version;
    result.min_clock = reply.min_clock;
    if (request.call) request.call->part_done(result);
    return;
  }
  if (reply.error == ErrorKind::kDeclaredDead) return end(ErrorKind::kDeclaredDead, kDeclaredDeadText);
  if (reply.error == ErrorKind::kUnknownKeys && found->second.keys != 0) {
    found->second.includes_keys = true;
    unsend(found->second);
    unsent_lanes_.insert(reply.partition);
    return;
  }
  if (is_for_later(reply.error)) {
    found->second.again_ns = surroundings_->now_ns() + in_ns(kAgain_s);
    return;
  }
  // The sequence number must be used: otherwise no later request would be applied. So the request becomes a
  // tick.
  if (found->second.call)
    found->second.call->fail(reply.error, text("partition ", reply.partition, ": ", name_of(reply.error)));
  if (found->second.takes_credit && found->second.sent_ns != 0) bytes_under_way_ -= found->second.body.size();
  found->second.head.op = RequestOp::kTick;
  found->second.body = {};
  found->second.call = nullptr;
  found->second.takes_credit = false;
  found->second.sent_ns = 0;
  unsent_lanes_.insert(reply.partition);
}

bool ClientWork::is_for_later(ErrorKind error) {
  if (error == ErrorKind::kWrongEpoch || error == ErrorKind::kUnknownTable) membership_.beat_soon();
  return error == ErrorKind::kWrongEpoch || error == ErrorKind::kNotNow || error == ErrorKind::kOverloaded ||
         error == ErrorKind::kUnknownTable;
}

bool ClientWork::write(const OutgoingPull& pull, const PullReply& reply, const wire::Buffer& body) {
  if (pull.row_elements > 0) return write_rows(pull, body);
  if (pull.out.empty() || !reply.changed) return true;
  if (body.size() != pull.out.size_bytes()) return false;
  if (!pull.call->is_over()) std::memcpy(pull.out.data(), body.bytes().data(), body.size());
  return true;
}

void ClientWork::on_pulled(const PullReply& reply, const wire::Buffer& body) {
  const auto found = pulls_.find(reply.request);
  if (found == pulls_.end()) return;
  if (reply.error == ErrorKind::kUnknownKeys && found->second.keys != 0) {
    found->second.includes_keys = true;
    found->second.sent_ns = 0;
    unsent_pulls_.insert(reply.request);
    return;
  }
  if (is_for_later(reply.error)) {
    found->second.again_ns = surroundings_->now_ns() + in_ns(kAgain_s);
    return;
  }
  const OutgoingPull pull = std::move(found->second);
  pulls_.erase(found);
  if (reply.error == ErrorKind::kDeclaredDead) return end(ErrorKind::kDeclaredDead, kDeclaredDeadText);
  if (!pull.head.save_in.empty()) return on_saved(pull, reply, body);
  const std::optional<wire::Buffer> values =
      reply.error == ErrorKind::kNone ? decoded(pull, reply, body) : std::nullopt;
  if (!values || !write(pull, reply, *values)) {
    const ErrorKind error = reply.error == ErrorKind::kNone ? ErrorKind::kMalformed : reply.error;
    return pull.call->fail(error, text("pull from partition ", pull.head.partition, ": ", name_of(error)));
  }
  keep_base(pull, reply, *values);
  if (const auto lane = lanes_.find(pull.head.partition); lane != lanes_.end())
    lane->second.last_version = std::max(lane->second.last_version, reply.version);
  Result result;
  result.version = reply.version;
  result.min_clock = reply.min_clock;
  result.changed = reply.changed;
  result.num_updates = reply.num_updates;
  result.values = *values;
  pull.call->part_done(result);
}

}  // namespace trireme::ps
