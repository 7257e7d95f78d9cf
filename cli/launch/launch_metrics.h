#pragma once
// The metrics of the ranks of a launcher, for Prometheus: `--metrics-port`. A thread of its own answers; the
// ranks' status pages are read at each request, and never in between. Thread-safe.

#include <mutex>
#include <string>
#include <vector>

#include "trireme/http/http_server.h"
#include "trireme/telemetry/live_run.h"

namespace trireme::cli {

struct MetricsOptions {
  wire::Endpoint endpoint = {"127.0.0.1", 0};
  std::string token_file = {};  ///< with the token; where it is missing, it is made; empty: a new token
};

class LaunchMetrics {
 public:
  /// Throws CommError for an address that is taken, InvalidArgument for a token file that others can read.
  explicit LaunchMetrics(const MetricsOptions& options);

  /// From now on it tells of these.
  void set_ranks(std::vector<telemetry::LiveRank> ranks);
  /// Where the metrics are, and how a reader proves that it may have them.
  std::string describe() const;

 private:
  std::string text();

  const std::string token_file_;
  const wire::Secret token_;
  std::mutex mutex_;
  std::vector<telemetry::LiveRank> ranks_;
  telemetry::RunSample last_;
  http::HttpServer server_;  ///< its thread ends first
};

}  // namespace trireme::cli
