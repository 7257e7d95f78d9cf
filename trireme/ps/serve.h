#pragma once
// Runs a coordinator or a server on this thread: a NodeLoop with the node, until it is asked to stop.

#include <functional>
#include <optional>
#include <vector>

#include "trireme/base/stop_request.h"
#include "trireme/ps/coordinator.h"
#include "trireme/ps/server.h"
#include "trireme/wire/node_loop.h"
#include "trireme/wire/socket.h"

namespace trireme::ps {

struct ServeOptions {
  wire::NodeLoopOptions loop = {};    ///< listening address, admission, the coordinator's folder
  const StopRequest* stop = nullptr;  ///< looked at several times a second
  /// Called once, with where it listens.
  std::function<void(const std::vector<wire::Address>& addresses)> on_listening = {};
  /// Where metrics are to be had (served_metrics.h); port 0: a free one.
  std::optional<wire::Endpoint> metrics = {};
  std::function<void(const wire::Endpoint& endpoint)> on_metrics = {};  ///< called once, where there are any
  /// Of a server that was asked to stop: seconds without a handover, after which it ends with its remaining
  /// state. Above 0.
  double leave_timeout_s = 30;
};

/// Whether its StopRequest, where there is one, has been made.
bool is_asked_to_stop(const ServeOptions& serve);

/// Whether it is every address of this host, which other hosts cannot connect to.
bool is_everywhere(const wire::Address& address);

/// Returns when it is asked to stop. Throws InvalidArgument for options that cannot work, CommError for an
/// address that is taken, DataError for a folder that is damaged, full or another coordinator's.
void serve_coordinator(const CoordinatorOptions& options, ServeOptions serve);

/// Without options.address the others get the first listening address. Without options.name the name is made
/// of both. Without options.owner_threads there is one for each core but the loop's. Asked to stop, it hands
/// over its state and returns when the cluster does not need it. It returns after leave_timeout_s without
/// progress, as where no other server is left, and reports its remaining state. A second request ends the
/// process at once, as a crash would. Throws as the other, and DataError where values are lost with it, as no
/// other server has them.
void serve_params(ServerOptions options, ServeOptions serve);

}  // namespace trireme::ps
