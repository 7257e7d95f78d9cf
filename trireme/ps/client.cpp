#include "trireme/ps/client.h"

#include <utility>

#include "trireme/ps/internal/client_work.h"

namespace trireme::ps {

Client::Client(ClientOptions options) : work_(std::make_unique<ClientWork>(std::move(options))) {}
Client::~Client() = default;

const ClusterMap& Client::map() const { return work_->map(); }
WorkerClock Client::clock() const { return work_->clock(); }
WorkerLife Client::life() const { return work_->life(); }
void Client::create_table(const TableSpec& spec, Done done) { work_->create_table(spec, std::move(done)); }
void Client::join(TableId table, Done done) { work_->join(table, std::move(done)); }
void Client::push_chunk(TableId table, std::uint64_t chunk, wire::Buffer values, Done done) {
  work_->push_chunk(table, chunk, std::move(values), std::move(done));
}
void Client::push(TableId table, const wire::Buffer& values, Done done) {
  work_->add_whole(RequestOp::kPush, table, values, std::move(done));
}
void Client::assign(TableId table, const wire::Buffer& values, Done done) {
  work_->add_whole(RequestOp::kAssign, table, values, std::move(done));
}
void Client::pull_chunk(TableId table, std::uint64_t chunk, Version newer_than, Done done) {
  work_->pull_chunk(table, chunk, newer_than, std::move(done));
}
void Client::pull(TableId table, std::span<float> out, Done done) {
  work_->pull(table, out, std::move(done));
}
void Client::tick() { work_->tick(); }
void Client::barrier(std::uint32_t num_workers, Done done) { work_->barrier(num_workers, std::move(done)); }
void Client::leave(Done done) { work_->leave(std::move(done)); }

void Client::push_pull(TableId table, const wire::Buffer& values, std::span<float> out, Done done) {
  // The pull asks for what this push makes; its failure is the pull's, too.
  work_->add_whole(RequestOp::kPush, table, values, [](const Result&) {});
  work_->pull(table, out, std::move(done));
}

void Client::on_start(wire::Surroundings& surroundings) { work_->start(surroundings); }
void Client::on_connected(wire::ConnectionId connection, const wire::PeerIdentity&) {
  work_->on_connected(connection);
}
void Client::on_message(wire::ConnectionId connection, wire::Message message) {
  work_->on_message(connection, message);
}
void Client::on_closed(wire::ConnectionId connection, wire::CloseCause, const std::string&) {
  work_->on_closed(connection);
}
void Client::on_timer(wire::TimerId) { work_->on_timer(); }

}  // namespace trireme::ps
