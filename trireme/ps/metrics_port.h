#pragma once
// A port that answers GET /metrics with the text that it was last given (http_server.h).

#include <mutex>
#include <string>

#include "trireme/http/http_server.h"

namespace trireme::ps {

class MetricsPort {
 public:
  /// Port 0 takes a free one. Throws CommError for an address that is taken.
  explicit MetricsPort(const wire::Endpoint& endpoint);

  wire::Endpoint endpoint() const { return server_.endpoint(); }
  /// From any thread.
  void publish(std::string metrics);

 private:
  http::Served find(const std::string& path) const;

  mutable std::mutex mutex_;
  std::string text_;
  http::HttpServer server_;  ///< its thread ends first
};

}  // namespace trireme::ps
