#pragma once
// A port that answers GET /metrics with the text that it was last given: HTTP/1.0, one request a connection.
// A thread of its own serves it and touches nothing else. Few clients are served at a time, a request is
// short, and who is not done in two seconds is closed; so clients can hurt each other, and nobody else.

#include <atomic>
#include <mutex>
#include <string>
#include <thread>

#include "trireme/wire/socket.h"

namespace trireme::ps {

class MetricsPort {
 public:
  /// Port 0 takes a free one. Throws CommError for an address that is taken.
  explicit MetricsPort(const wire::Endpoint& endpoint);
  ~MetricsPort();
  MetricsPort(const MetricsPort&) = delete;
  MetricsPort& operator=(const MetricsPort&) = delete;

  wire::Endpoint endpoint() const { return listener_.local(); }
  /// From any thread.
  void publish(std::string metrics);

 private:
  void serve();
  std::string answer_to(const std::string& request) const;

  wire::Socket listener_;
  mutable std::mutex mutex_;
  std::string text_;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

}  // namespace trireme::ps
