#include "cli/top/top_server.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <iostream>
#include <map>
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

/// The spans that the page shows, for pages that are opened later.
class History {
 public:
  void add(const telemetry::RunView& latest) {
    const std::int64_t first_ns = latest.at_ns - kShown_ns;
    for (const telemetry::RankView& rank : latest.ranks) {
      std::deque<telemetry::ActivitySpan>& spans = spans_[rank.rank];
      for (const telemetry::ActivitySpan& span : rank.spans)
        if (spans.empty() || span.begin_ns > spans.back().begin_ns) spans.push_back(span);
      while (spans.size() > 1 && (spans[1].begin_ns < first_ns || spans.size() > kMaxSpans))
        spans.pop_front();
    }
  }
  std::vector<telemetry::ActivitySpan> of(int rank) const {
    const auto found = spans_.find(rank);
    if (found == spans_.end()) return {};
    return {found->second.begin(), found->second.end()};
  }

 private:
  static constexpr std::int64_t kShown_ns = 20'000'000'000;  // of the page's timeline
  static constexpr std::size_t kMaxSpans = 4000;             // of a rank
  std::map<int, std::deque<telemetry::ActivitySpan>> spans_;
};

/// Content for the server's thread: the last view, with all spans of the timeline.
class Shown {
 public:
  void set(telemetry::RunView view, const telemetry::RunView& latest) {
    const std::lock_guard lock(mutex_);
    view_ = std::move(view);
    history_.add(latest);
  }
  http::Served find(const std::string& path) const {
    if (path == "/") return {.body = kTopPage, .type = "text/html; charset=utf-8"};
    if (path == "/events") return {.body = json(), .events = true};
    if (path == "/view.json") return {.body = json() + "\n", .type = "application/json"};
    return {.status = 404, .body = "only /, /events and /view.json\n"};
  }

 private:
  std::string json() const {
    const std::lock_guard lock(mutex_);
    telemetry::RunView view = view_;
    for (telemetry::RankView& rank : view.ranks) rank.spans = history_.of(rank.rank);
    return json_of(view, Spans::kYes);
  }

  mutable std::mutex mutex_;
  telemetry::RunView view_;
  History history_;
};

/// The view with the spans since the last sample: pages have the earlier ones.
std::string event_of(const LiveView& live) {
  telemetry::RunView view = live.view();
  const telemetry::RunView latest = live.latest();
  for (telemetry::RankView& rank : view.ranks) {
    for (const telemetry::RankView& other : latest.ranks)
      if (rank.rank == other.rank) rank.spans = other.spans;
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
  for (LiveView::State state = live.sample(); state != LiveView::State::kLive; state = live.sample()) {
    require(state == LiveView::State::kWaits, end_of_run(live.run()));
    wait(interval_s, stop);
    if (stop.signal() != 0) return kExitOk;
  }
  Shown shown;
  shown.set(live.view(), live.latest());
  const wire::Secret token = wire::Secret::random();
  http::HttpServer server({"127.0.0.1", port}, {.name = "trireme-top", .token = token},
                          [&shown](const std::string& path) { return shown.find(path); });
  std::cout << "the run is shown at http://" << server.endpoint().text() << "/?token=" << token.reveal()
            << " (Ctrl-C ends)" << std::endl;
  for (wait(interval_s, stop); stop.signal() == 0; wait(interval_s, stop)) {
    const LiveView::State state = live.sample();
    if (state == LiveView::State::kWaits) continue;
    if (state == LiveView::State::kEnded) {
      const std::string end = end_of_run(live.run());
      server.send_event(
          nlohmann::json{{"ended", end}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
      wait(kLastEvent_s, stop);
      std::cout << end << std::endl;
      return kExitOk;
    }
    shown.set(live.view(), live.latest());
    server.send_event(event_of(live));
  }
  return kExitOk;
}

}  // namespace trireme::cli
