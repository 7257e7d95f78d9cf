#include "cli/launch/launch_metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/base/file_descriptor.h"
#include "trireme/base/prometheus.h"
#include "trireme/telemetry/run_metrics.h"

namespace trireme::cli {
namespace {

/// Readable by this user only, from the first byte on.
void make_token_file(const std::string& path) {
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.is_open() && errno == EEXIST) return;
  const bool made = file.is_open();
  const bool written = made && file.write(wire::Secret::random().reveal() + "\n") && file.close();
  const int error = errno;
  if (made && !written) ::unlink(path.c_str());  // the next start would use it as a token
  require(written, "cannot make the file of the metrics' token, ", path, ": ", std::strerror(error),
          "; name one in a folder that you may write to (--metrics-token-file)");
}

wire::Secret token_of(const MetricsOptions& options) {
  if (options.token_file.empty()) return wire::Secret::random();
  make_token_file(options.token_file);
  return wire::Secret::from_file(options.token_file);
}

}  // namespace

LaunchMetrics::LaunchMetrics(const MetricsOptions& options)
    : token_file_(options.token_file),
      token_(token_of(options)),
      server_(options.endpoint, {.name = "trireme-metrics", .token = token_},
              [this](const std::string& path) {
                if (path != "/metrics") return http::Served{.status = 404, .body = "only /metrics\n"};
                return http::Served{.body = text(), .type = kPrometheusType};
              }) {}

void LaunchMetrics::set_ranks(std::vector<telemetry::LiveRank> ranks) {
  const std::lock_guard lock(mutex_);
  ranks_ = std::move(ranks);
  last_ = {};
}

std::string LaunchMetrics::text() {
  const std::lock_guard lock(mutex_);
  telemetry::RunSample now = telemetry::sample_run(ranks_);
  std::string metrics = telemetry::metrics_text(now, telemetry::view_between(last_, now));
  last_ = std::move(now);
  return metrics;
}

std::string LaunchMetrics::describe() const {
  const std::string url = trireme::text("metrics at http://", server_.endpoint().text(), "/metrics");
  return token_file_.empty() ? trireme::text(url, "?token=", token_.reveal())
                             : trireme::text(url, " with the token in ", token_file_);
}

}  // namespace trireme::cli
