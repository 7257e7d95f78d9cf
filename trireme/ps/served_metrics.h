#pragma once
// Metrics of what is served, where ServeOptions ask for them: a port (metrics_port.h), and once a second a
// text for it. One thread.

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
  /// To be called often: once a second, and after change(), `ask` is given what takes a text, then or later.
  void look(const std::function<void(const Publish& publish)>& ask);
  /// What was published is not so any more.
  void change() { next_s_ = 0; }

 private:
  std::optional<MetricsPort> port_;
  double next_s_ = 0;
};

}  // namespace trireme::ps
