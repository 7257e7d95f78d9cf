#pragma once
// Reads the status of a running cluster: of the coordinator, then of each server that the map
// has. In the handshake it is an "observer", a role that may ask for status and nothing else.

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "trireme/ps/status.h"
#include "trireme/wire/node_loop.h"

namespace trireme::ps {

struct ObserverOptions {
  wire::Address coordinator;
  double timeout_s = 5;  ///< for all of it
};

/// Answers of the coordinator and its servers, or the reasons of missing ones.
struct ClusterReport {
  /// One server's answer.
  struct Server {
    std::optional<ServerStatus> status;
    std::string trouble;  ///< why there is none
  };
  std::optional<ClusterStatus> cluster;
  std::string trouble;                 ///< why there is none
  std::map<ServerId, Server> servers;  ///< those of the cluster's list that are not down
};

/// As a node: `done` is called once, when all have answered, or have failed to in time.
class Observer final : public wire::Node {
 public:
  Observer(ObserverOptions options, std::function<void(const ClusterReport&)> done)
      : options_(std::move(options)), done_(std::move(done)) {}

  void on_start(wire::Surroundings& surroundings) override;
  void on_connected(wire::ConnectionId connection, const wire::PeerIdentity& peer) override;
  void on_message(wire::ConnectionId connection, wire::Message message) override;
  void on_closed(wire::ConnectionId connection, wire::CloseCause cause, const std::string& reason) override;
  void on_timer(wire::TimerId timer) override;

 private:
  void on_cluster(const wire::Message& message);
  void ask_again(std::optional<ServerId> server);
  void finish_if_complete();
  void finish();

  ObserverOptions options_;
  std::function<void(const ClusterReport&)> done_;
  wire::Surroundings* surroundings_ = nullptr;
  wire::ConnectionId coordinator_ = 0;
  std::map<wire::ConnectionId, ServerId> asked_;  ///< servers that have not answered yet
  std::map<wire::TimerId, std::optional<ServerId>>
      asked_again_;  ///< target of the next request, when the timer fires: none, the coordinator
  wire::TimerId timeout_ = 0;
  ClusterReport report_;
};

/// Waits for the report. Servers without an answer are in it, with the reason. Throws CommError when the
/// coordinator does not answer, with the tried addresses.
ClusterReport look_at_cluster(const ObserverOptions& options, wire::NodeLoopOptions loop = {});

}  // namespace trireme::ps
