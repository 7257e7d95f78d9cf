#include "trireme/ps/served_metrics.h"

#include <utility>

#include "trireme/base/clock.h"

namespace trireme::ps {

ServedMetrics::ServedMetrics(const ServeOptions& serve) {
  if (!serve.metrics) return;
  port_.emplace(*serve.metrics);
  if (serve.on_metrics) serve.on_metrics(port_->endpoint());
}

void ServedMetrics::look(const std::function<void(const Publish& publish)>& ask) {
  if (!port_ || now_s() < next_s_) return;
  next_s_ = now_s() + 1;
  ask([this](std::string metrics) { port_->publish(std::move(metrics)); });
}

}  // namespace trireme::ps
