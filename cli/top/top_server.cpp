#include "cli/top/top_server.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/top/top_json.h"
#include "cli/top/top_page.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/printable.h"
#include "trireme/base/stop_request.h"
#include "trireme/http/http_server.h"
#include "trireme/telemetry/run_listing.h"

namespace trireme::cli {
namespace {

constexpr double kLastEvent_s = 1;
constexpr double kLookForStop_s = 0.1;

/// The view that the server's thread shows.
class Shown {
 public:
  void set(std::string json) {
    const std::lock_guard lock(mutex_);
    json_ = std::move(json);
  }
  http::Served find(const std::string& path) const {
    if (path == "/") return {.body = kTopPage, .type = "text/html; charset=utf-8"};
    const std::lock_guard lock(mutex_);
    if (path == "/events") return {.body = json_, .events = true};
    if (path == "/view.json") return {.body = json_ + "\n", .type = "application/json"};
    return {.status = 404, .body = "only /, /events and /view.json\n"};
  }

 private:
  mutable std::mutex mutex_;
  std::string json_;
};

std::string json_for_page(const LiveView& live) {
  telemetry::RunView view = live.view();
  for (const telemetry::RankView& latest : live.latest().ranks) {
    for (telemetry::RankView& rank : view.ranks) {
      if (rank.rank == latest.rank) rank.spans = latest.spans;
    }
  }
  return json_of(view, Spans::kYes);
}

void wait(double seconds, const StopRequest& stop) {
  for (const Deadline deadline = Deadline::after_s(seconds); !deadline.expired() && stop.signal() == 0;)
    std::this_thread::sleep_for(Seconds(std::min(kLookForStop_s, deadline.remaining_s())));
}

}  // namespace

std::string end_of_run(const std::string& folder) {
  if (folder.empty()) return "all ranks of the program have ended";
  const telemetry::ListedRun listed = telemetry::look_at_run(folder);
  if (!listed.problem.empty()) return text("the run has ended: ", listed.problem);
  std::string words = text("the run in ", printable(folder), " has ended: ", printable(listed.run.status),
                           " after ", listed.run.steps, " step(s)");
  if (!listed.run.message.empty()) words += text(": ", printable_message(listed.run.message));
  return words;
}

int serve_view(LiveView& live, int port, double interval_s) {
  const StopRequest stop;
  require(live.sample(), end_of_run(live.run()));
  Shown shown;
  shown.set(json_for_page(live));
  const wire::Secret token = wire::Secret::random();
  http::HttpServer server({"127.0.0.1", port}, {.name = "trireme-top", .token = token},
                          [&shown](const std::string& path) { return shown.find(path); });
  std::cout << "the run is shown at http://" << server.endpoint().text() << "/?token=" << token.reveal()
            << " (Ctrl-C ends)" << std::endl;
  for (wait(interval_s, stop); stop.signal() == 0; wait(interval_s, stop)) {
    if (!live.sample()) {
      const std::string end = end_of_run(live.run());
      server.send_event(nlohmann::json{{"ended", end}}.dump(
          -1, ' ', false, nlohmann::json::error_handler_t::replace));
      wait(kLastEvent_s, stop);
      std::cout << end << std::endl;
      return kExitOk;
    }
    std::string json = json_for_page(live);
    server.send_event(json);
    shown.set(std::move(json));
  }
  return kExitOk;
}

}  // namespace trireme::cli
