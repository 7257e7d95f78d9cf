#pragma once
// Metrics of a node, where ServeOptions request them: a port (metrics_port.h), and once a second a text for
// it. One thread.

#include <functional>
#include <optional>
#include <string>

#include "trireme/ps/metrics_port.h"
#include "trireme/ps/serve.h"

namespace trireme::ps {

class ServedMetrics {
 public:
  /// Takes the text of this second.
  using Publish = std::function<void(std::string metrics)>;

  /// Throws CommError for an address that is taken.
  explicit ServedMetrics(const ServeOptions& serve);
  /// To be called often: once a second, and after change(), it calls `ask` with a function that takes a text,
  /// then or later.
  void look(const std::function<void(const Publish& publish)>& ask);
  /// Marks the published text as outdated.
  void change() { next_s_ = 0; }

 private:
  std::optional<MetricsPort> port_;
  double next_s_ = 0;
};

}  // namespace trireme::ps
