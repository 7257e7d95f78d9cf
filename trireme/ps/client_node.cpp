#include "trireme/ps/client_node.h"

#include <utility>

#include "trireme/ps/internal/client_work.h"

namespace trireme::ps {

ClientNode::ClientNode(ClientOptions options) : work_(std::make_unique<ClientWork>(std::move(options))) {}
ClientNode::~ClientNode() = default;

const ClusterMap& ClientNode::map() const { return work_->map(); }
WorkerClock ClientNode::clock() const { return work_->clock(); }
WorkerLife ClientNode::life() const { return work_->life(); }
std::span<const float> ClientNode::residual(TableId table, std::uint64_t chunk) const {
  return work_->residual(table, chunk);
}
void ClientNode::forget_residuals(TableId table) { work_->forget_residuals(table); }
void ClientNode::wait_until_member(Done done) { work_->wait_until_member(std::move(done)); }
void ClientNode::create_table(const TableSpec& spec, Done done) {
  work_->create_table(spec, std::move(done));
}
void ClientNode::join(TableId table, Done done) { work_->join(table, std::move(done)); }
void ClientNode::push_chunk(TableId table, std::uint64_t chunk, wire::Buffer values, Done done,
                            PushOptions options) {
  work_->push_chunk(table, chunk, std::move(values), std::move(done), options);
}
void ClientNode::push(TableId table, const wire::Buffer& values, Done done, PushOptions options) {
  work_->add_whole(RequestOp::kPush, table, values, std::move(done), options);
}
void ClientNode::assign(TableId table, const wire::Buffer& values, Done done) {
  work_->add_whole(RequestOp::kAssign, table, values, std::move(done), {});
}
void ClientNode::restore_rows(TableId table, PartitionId partition, wire::Buffer rows, Done done) {
  work_->restore_rows(table, partition, std::move(rows), std::move(done));
}
void ClientNode::restore_chunk(TableId table, std::uint64_t chunk, wire::Buffer values_and_state,
                               std::uint64_t num_updates, Done done) {
  work_->restore_chunk(table, chunk, std::move(values_and_state), num_updates, std::move(done));
}
void ClientNode::pull_state(TableId table, std::uint64_t chunk, Done done, CallOptions options) {
  work_->pull_chunk(table, chunk, {.with_state = true}, std::move(done), options);
}
void ClientNode::pull_chunk(TableId table, std::uint64_t chunk, Version newer_than, Done done,
                            CallOptions options) {
  work_->pull_chunk(table, chunk, {.newer_than = newer_than}, std::move(done), options);
}
void ClientNode::pull_chunk(TableId table, std::uint64_t chunk, std::span<float> out, Done done,
                            CallOptions options) {
  work_->pull_chunk(table, chunk, {.out = out}, std::move(done), options);
}
void ClientNode::pull(TableId table, std::span<float> out, Done done, CallOptions options) {
  work_->pull(table, out, std::move(done), options);
}
void ClientNode::push_rows(TableId table, std::span<const std::uint64_t> keys, std::span<const float> rows,
                           Done done, PushOptions options) {
  work_->add_rows(RequestOp::kPush, table, keys, rows, std::move(done), options);
}
void ClientNode::assign_rows(TableId table, std::span<const std::uint64_t> keys, std::span<const float> rows,
                             Done done) {
  work_->add_rows(RequestOp::kAssign, table, keys, rows, std::move(done), {});
}
void ClientNode::pull_rows(TableId table, std::span<const std::uint64_t> keys, std::span<float> out,
                           Done done, CallOptions options) {
  work_->pull_rows(table, keys, out, std::move(done), options);
}
void ClientNode::save(const std::string& folder, Saved done) { work_->save(folder, std::move(done)); }
void ClientNode::begin_anew(Done done) { work_->begin_anew(std::move(done)); }
void ClientNode::tick() { work_->tick(); }
void ClientNode::barrier(std::uint32_t num_workers, Done done) {
  work_->barrier(num_workers, std::move(done));
}
void ClientNode::leave(Done done) { work_->leave(std::move(done)); }

namespace {

/// The pull depends on the push, so its result comes last. `done` gets the first failure of the two.
template <class Push, class Pull>
void push_then_pull(Done done, const Push& push, const Pull& pull) {
  const auto pushed = std::make_shared<Result>();
  push([pushed](const Result& result) { *pushed = result; });
  if (pushed->error != ErrorKind::kNone) return done(*pushed);  // rejected locally: nothing was sent
  pull([pushed, done = std::move(done)](const Result& result) {
    done(pushed->error != ErrorKind::kNone ? *pushed : result);
  });
}

}  // namespace

void ClientNode::push_pull(TableId table, const wire::Buffer& values, std::span<float> out, Done done,
                           PushOptions options) {
  push_then_pull(
      std::move(done), [&](Done then) { push(table, values, std::move(then), options); },
      [&](Done then) { pull(table, out, std::move(then), options.call()); });
}
void ClientNode::push_pull_rows(TableId table, std::span<const std::uint64_t> keys,
                                std::span<const float> rows, std::span<float> out, Done done,
                                PushOptions options) {
  push_then_pull(
      std::move(done), [&](Done then) { push_rows(table, keys, rows, std::move(then), options); },
      [&](Done then) { pull_rows(table, keys, out, std::move(then), options.call()); });
}

void ClientNode::on_start(wire::Surroundings& surroundings) { work_->start(surroundings); }
void ClientNode::on_connected(wire::ConnectionId connection, const wire::PeerIdentity&) {
  work_->on_connected(connection);
}
void ClientNode::on_message(wire::ConnectionId connection, wire::Message message) {
  work_->on_message(connection, message);
}
void ClientNode::on_closed(wire::ConnectionId connection, wire::CloseCause, const std::string& reason) {
  work_->on_closed(connection, reason);
}
void ClientNode::on_timer(wire::TimerId) { work_->on_timer(); }

}  // namespace trireme::ps
