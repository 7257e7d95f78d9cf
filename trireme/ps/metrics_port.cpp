#include "trireme/ps/metrics_port.h"

#include <utility>

#include "trireme/base/prometheus.h"

namespace trireme::ps {

MetricsPort::MetricsPort(const wire::Endpoint& endpoint)
    : server_(endpoint, {.name = "trireme-metrics"}, [this](const std::string& path) { return find(path); }) {
}

void MetricsPort::publish(std::string metrics) {
  const std::lock_guard lock(mutex_);
  text_ = std::move(metrics);
}

http::Served MetricsPort::find(const std::string& path) const {
  if (path != "/metrics") return {.status = 404, .body = "only /metrics\n"};
  const std::lock_guard lock(mutex_);
  if (text_.empty()) return {.status = 503, .body = "nothing is known yet\n"};
  return {.body = text_, .type = kPrometheusType};
}

}  // namespace trireme::ps
