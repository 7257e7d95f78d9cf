#include "trireme/ps/serve.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/ps/metrics.h"
#include "trireme/ps/served_metrics.h"

namespace trireme::ps {
namespace {

/// Calls `look` at each timer of the node, to find out whether it has finished.
class Watched final : public wire::Node {
 public:
  Watched(wire::Node& node, std::function<void()> look) : node_(node), look_(std::move(look)) {}

  void on_start(wire::Surroundings& surroundings) override { node_.on_start(surroundings); }
  void on_connected(wire::ConnectionId connection, const wire::PeerIdentity& peer) override {
    node_.on_connected(connection, peer);
  }
  void on_message(wire::ConnectionId connection, wire::Message message) override {
    node_.on_message(connection, std::move(message));
  }
  void on_closed(wire::ConnectionId connection, wire::CloseCause cause, const std::string& reason) override {
    node_.on_closed(connection, cause, reason);
  }
  void on_timer(wire::TimerId timer) override {
    node_.on_timer(timer);
    look_();
  }

 private:
  wire::Node& node_;
  std::function<void()> look_;
};

void report_addresses(const wire::NodeLoop& loop, const ServeOptions& serve) {
  if (serve.on_listening) serve.on_listening(loop.addresses());
}

/// The departure of a server: it hands over its partitions as long as this makes progress.
class Departure {
 public:
  Departure(Server& server, std::string name, const ServeOptions& serve)
      : server_(server), name_(std::move(name)), serve_(serve) {}

  /// Called at intervals; returns whether the server has finished.
  bool is_over() {
    if (!is_leaving_ && is_asked_to_stop(serve_)) begin();
    if (!is_leaving_) return false;
    if (server_.is_released()) return true;
    const auto progress = std::pair(server_.holdings().partitions, server_.counts().bytes_copied);
    if (std::exchange(progress_, progress) != progress) patience_ = Deadline::after_s(serve_.leave_timeout_s);
    return patience_.expired();
  }

  /// Called after the end. Throws DataError if values are lost.
  void report_remaining() const {
    const ServerHoldings held = server_.holdings();
    if (!is_leaving_ || server_.is_released() || held.partitions == 0) return;
    const std::string left = text(
        "server ", name_, " ends with ", held.partitions, " partition(s) that it could not give away: for ",
        human_duration(serve_.leave_timeout_s), " no other server took any (--leave-timeout)");
    if (held.alone > 0 && held.has_tables)
      throw DataError(text(left, "; no other server holds ", held.alone,
                           " of them, whose values are lost: checkpoints have what was saved"));
    if (serve_.loop.report) serve_.loop.report(text(left, "; no values are lost"));
  }

 private:
  void begin() {
    is_leaving_ = true;
    server_.leave();
    if (serve_.loop.report)
      serve_.loop.report(
          text("server ", name_, " gives its partitions away; another signal ends it at once"));
  }

  Server& server_;
  const std::string name_;
  const ServeOptions& serve_;
  bool is_leaving_ = false;
  std::pair<std::size_t, std::uint64_t> progress_{~std::size_t{0}, 0};  ///< impossible: the first look counts
  Deadline patience_ = Deadline::after_s(0);
};

}  // namespace

bool is_asked_to_stop(const ServeOptions& serve) {
  return serve.stop != nullptr && serve.stop->signal() != 0;
}

bool is_everywhere(const wire::Address& address) {
  return address.starts_with("tcp:0.0.0.0:") || address.starts_with("tcp:[::]:");
}

void serve_coordinator(const CoordinatorOptions& options, ServeOptions serve) {
  serve.loop.self = {.role = "coordinator", .name = "0"};
  serve.loop.node_registers = true;
  wire::NodeLoop loop(serve.loop);
  CoordinatorOptions counted = options;
  counted.channel_counts = [&loop] { return loop.counts(); };
  Coordinator coordinator(counted);
  ServedMetrics metrics(serve);
  report_addresses(loop, serve);
  Watched watched(coordinator, [&] {
    if (is_asked_to_stop(serve)) loop.stop();
    metrics.look([&](const auto& publish) { publish(metrics_text(coordinator.status())); });
  });
  loop.run(watched);
}

void serve_params(ServerOptions options, ServeOptions serve) {
  serve.loop.self = {.role = "server", .name = options.name.empty() ? "params" : options.name};
  serve.loop.node_registers = true;
  wire::NodeLoop loop(serve.loop);
  if (options.address.empty()) options.address = loop.addresses().front();
  require(!is_everywhere(options.address), "this server listens at ", options.address,
          ", which says nothing to others: tell them an address of this host (--advertise tcp:HOST:PORT)");
  require(wire::is_address(options.address), "this server tells others that it is at '", options.address,
          "', which is no address; expected --advertise tcp:HOST:PORT or unix:PATH");
  require(serve.leave_timeout_s > 0, "leave_timeout_s is ", serve.leave_timeout_s,
          "; expected seconds above 0 (--leave-timeout)");
  require(options.weight >= 1e-6 && options.weight <= 1e6, "the weight of a server is ", options.weight,
          "; expected 0.000001 to 1000000");
  if (options.name.empty()) options.name = text(options.host, " ", options.address);
  if (options.owner_threads == 0) options.owner_threads = std::max(1, available_cores() - 1);
  options.channel_counts = [&loop] { return loop.counts(); };
  ServedMetrics metrics(serve);
  report_addresses(loop, serve);
  Server server(options);
  Departure departure(server, options.name, serve);
  Watched watched(server, [&] {
    metrics.look([&](const auto& publish) {
      server.ask_status([publish](const ServerStatus& status) { publish(metrics_text(status)); });
    });
    if (departure.is_over()) loop.stop();
  });
  loop.run(watched);
  departure.report_remaining();
}

}  // namespace trireme::ps
