#include "trireme/ps/observer.h"

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::ps {
namespace {

constexpr double kAskAgain_s = 0.05;

}  // namespace

void Observer::on_start(wire::Surroundings& surroundings) {
  surroundings_ = &surroundings;
  timeout_ = surroundings.start_timer(options_.timeout_s);
  coordinator_ = surroundings.network().connect(options_.coordinator);
}

void Observer::on_connected(wire::ConnectionId connection, const wire::PeerIdentity&) {
  surroundings_->network().send(connection, message_of(Status{connection}, {}, kUrgent));
}

void Observer::on_message(wire::ConnectionId connection, wire::Message message) {
  if (!head_of<StatusReply>(message)) return;
  if (connection == coordinator_) return on_cluster(message);
  const auto asked = asked_.find(connection);
  if (asked == asked_.end()) return;
  ClusterReport::Server& server = report_.servers[asked->second];
  server.status = wire::decode<ServerStatus>(message.body.bytes());
  server.trouble = server.status ? "" : "what it answers is no status: is it of another version of trireme?";
  asked_.erase(asked);
  finish_if_complete();
}

void Observer::on_cluster(const wire::Message& message) {
  if (report_.cluster) return;
  report_.cluster = wire::decode<ClusterStatus>(message.body.bytes());
  if (!report_.cluster) {
    report_.trouble = "what it answers is no status: is it of another version of trireme?";
    return finish();
  }
  for (const PlacedServer& server : report_.cluster->servers) {
    if (!server.entry.may_hold()) continue;
    report_.servers[server.entry.id];
    asked_[surroundings_->network().connect(server.entry.address)] = server.entry.id;
  }
  finish_if_complete();
}

void Observer::on_closed(wire::ConnectionId connection, wire::CloseCause cause, const std::string& reason) {
  // A peer with too many connections closes some of them in the handshake.
  const bool is_busy = cause == wire::CloseCause::kByPeer;
  if (connection == coordinator_ && !report_.cluster) {
    report_.trouble = reason;
    return is_busy ? ask_again({}) : finish();
  }
  const auto asked = asked_.find(connection);
  if (asked == asked_.end()) return;
  report_.servers[asked->second].trouble = reason;
  if (is_busy) ask_again(asked->second);
  asked_.erase(asked);
  finish_if_complete();
}

void Observer::ask_again(std::optional<ServerId> server) {
  asked_again_[surroundings_->start_timer(kAskAgain_s)] = server;
}

void Observer::on_timer(wire::TimerId timer) {
  if (timer == timeout_) {
    const std::string late = text("no answer in ", options_.timeout_s, " s");
    const auto add_late = [&](std::string& trouble) { trouble += (trouble.empty() ? "" : "; ") + late; };
    if (!report_.cluster) add_late(report_.trouble);
    for (const auto& [connection, server] : asked_) add_late(report_.servers[server].trouble);
    return finish();
  }
  const auto again = asked_again_.extract(timer);
  if (again.empty()) return;
  const std::optional<ServerId> server = again.mapped();
  if (!server) {
    coordinator_ = surroundings_->network().connect(options_.coordinator);
    return;
  }
  const auto is_it = [&](const PlacedServer& placed) { return placed.entry.id == *server; };
  const auto placed = std::ranges::find_if(report_.cluster->servers, is_it);
  asked_[surroundings_->network().connect(placed->entry.address)] = *server;
}

void Observer::finish_if_complete() {
  if (asked_.empty() && asked_again_.empty()) finish();
}

void Observer::finish() {
  if (const auto done = std::exchange(done_, nullptr)) done(report_);
}

ClusterReport look_at_cluster(const ObserverOptions& options, wire::NodeLoopOptions loop_options) {
  if (loop_options.self.role.empty()) loop_options.self = {.role = "observer", .name = "status"};
  wire::NodeLoop loop(std::move(loop_options));
  ClusterReport report;
  Observer observer(options, [&](const ClusterReport& found) {
    report = found;
    loop.stop();
  });
  loop.run(observer);
  if (!report.cluster)
    throw CommError(text("no status from the coordinator at ", options.coordinator, ": ", report.trouble));
  return report;
}

}  // namespace trireme::ps
