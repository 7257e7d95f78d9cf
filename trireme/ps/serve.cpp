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

/// The node, and at each of its timers a look at whether it is over.
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

void tell_where(const wire::NodeLoop& loop, const ServeOptions& serve) {
  if (serve.on_listening) serve.on_listening(loop.addresses());
}

}  // namespace

bool is_asked_to_stop(const ServeOptions& serve) {
  return serve.stop != nullptr && serve.stop->signal() != 0;
}

bool is_everywhere(const wire::Address& address) {
  return address.starts_with("tcp:0.0.0.0:") || address.starts_with("tcp:[::]:");
}

void serve_coordinator(const CoordinatorOptions& options, ServeOptions serve) {
  serve.loop.self = {.role = "coordinator", .name = "0"};
  wire::NodeLoop loop(serve.loop);
  CoordinatorOptions counted = options;
  counted.channel_counts = [&loop] { return loop.counts(); };
  Coordinator coordinator(counted);
  ServedMetrics metrics(serve);
  tell_where(loop, serve);
  Watched watched(coordinator, [&] {
    if (is_asked_to_stop(serve)) loop.stop();
    metrics.look([&](const auto& publish) { publish(metrics_text(coordinator.status())); });
  });
  loop.run(watched);
}

void serve_params(ServerOptions options, ServeOptions serve) {
  serve.loop.self = {.role = "server", .name = options.name.empty() ? "params" : options.name};
  wire::NodeLoop loop(serve.loop);
  if (options.address.empty()) options.address = loop.addresses().front();
  require(!is_everywhere(options.address), "this server listens at ", options.address,
          ", which says nothing to others: tell them an address of this host (--advertise tcp:HOST:PORT)");
  require(wire::is_address(options.address), "this server tells others that it is at '", options.address,
          "', which is no address; expected --advertise tcp:HOST:PORT or unix:PATH");
  require(options.weight >= 1e-6 && options.weight <= 1e6, "the weight of a server is ", options.weight,
          "; expected 0.000001 to 1000000");
  if (options.name.empty()) options.name = text(options.host, " ", options.address);
  if (options.owner_threads == 0) options.owner_threads = std::max(1, available_cores() - 1);
  options.channel_counts = [&loop] { return loop.counts(); };
  ServedMetrics metrics(serve);
  tell_where(loop, serve);
  Server server(options);
  bool is_leaving = false;
  Watched watched(server, [&] {
    metrics.look([&](const auto& publish) {
      server.ask_status([publish](const ServerStatus& status) { publish(metrics_text(status)); });
    });
    if (is_leaving && server.is_released()) return loop.stop();
    if (is_leaving || !is_asked_to_stop(serve)) return;
    is_leaving = true;
    server.leave();
    if (serve.loop.report)
      serve.loop.report(
          text("server ", options.name, " gives its partitions away; another signal ends it at once"));
  });
  loop.run(watched);
}

}  // namespace trireme::ps
