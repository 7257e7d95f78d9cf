#include <chrono>
#include <iostream>
#include <memory>
#include <thread>

#include "cli/command.h"
#include "cli/top/live_view.h"
#include "cli/top/terminal.h"
#include "cli/top/top_json.h"
#include "cli/top/top_server.h"
#include "cli/top/top_text.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/stop_request.h"

namespace trireme::cli {
namespace {

struct TopArguments {
  std::string run;
  double interval_s = 1;
  bool once = false;
  bool json = false;
  std::optional<int> port;  ///< of --serve
};

constexpr int kMostPort = 65535;
constexpr double kMinInterval_s = 0.1, kMaxInterval_s = 60;
constexpr int kColumnsWithoutTerminal = 120;

int print_once(LiveView& live, const TopArguments& top) {
  live.sample();
  std::this_thread::sleep_for(Seconds(top.interval_s));
  LiveView::State state = live.sample();
  for (; state == LiveView::State::kWaits; state = live.sample())
    std::this_thread::sleep_for(Seconds(top.interval_s));
  require(state == LiveView::State::kLive, end_of_run(live.run()));
  const telemetry::RunView view = live.view();
  if (top.json) {
    std::cout << json_of(view, Spans::kNo, 2) << std::endl;
    return kExitOk;
  }
  for (const std::string& line : lines_of(view, {.columns = kColumnsWithoutTerminal, .rows = 0}))
    std::cout << line << "\n";
  std::cout.flush();
  return kExitOk;
}

std::vector<std::string> frame_of(const LiveView& live, LiveView::State state, const TextSize& size) {
  if (state == LiveView::State::kLive) return lines_of(live.view(), size);
  return {"no rank runs: the launcher may start them again"};
}

bool ends(int key) {
  return key == 'q' || key == 'Q' || key == Terminal::kCtrlC || key == Terminal::kCtrlD ||
         key == Terminal::kEnd;
}

int show_live(LiveView& live, const TopArguments& top) {
  const StopRequest stop;
  LiveView::State state = LiveView::State::kWaits;
  {
    Terminal terminal;
    while (stop.signal() == 0 && (state = live.sample()) != LiveView::State::kEnded) {
      if (live.has_view()) terminal.draw(frame_of(live, state, terminal.size()));
      if (ends(terminal.key(top.interval_s))) break;
    }
  }
  if (state == LiveView::State::kEnded) std::cout << end_of_run(live.run()) << std::endl;
  return kExitOk;
}

int run_top(const TopArguments& top) {
  require(top.interval_s >= kMinInterval_s && top.interval_s <= kMaxInterval_s, "--interval is ",
          top.interval_s, "; expected ", kMinInterval_s, " to ", kMaxInterval_s, " seconds");
  require(!top.port || (*top.port >= 0 && *top.port <= kMostPort), "--serve is ", top.port.value_or(0),
          "; expected a port, 1 to ", kMostPort, ", or 0 for a free one");
  require(!top.port || (!top.once && !top.json), "--serve shows a page until the run ends: leave out ",
          top.once ? "--once" : "--json", ", or leave out --serve");
  LiveView live(choose_run(top.run));
  if (top.port) return serve_view(live, *top.port, top.interval_s);
  if (top.once || top.json || !has_terminal()) return print_once(live, top);
  return show_live(live, top);
}

}  // namespace

Command top_command() {
  return {.name = "top",
          .summary = "Show the ranks of a live run: step, action, waits, memory, rates, the slowest first",
          .usage = "[RUN] [OPTIONS]",
          .examples =
              "  trireme top\n"
              "  trireme top runs/fashion_mnist\n"
              "  trireme top fashion_mnist --once --json\n"
              "  trireme top fashion_mnist --serve 0\n",
          .declare = [](CLI::App& app) -> std::function<int()> {
            auto top = std::make_shared<TopArguments>();
            app.add_option("run", top->run,
                           "Folder of the run, its name below runs/, or the process id of its launcher "
                           "(default: the newest one below runs/, else the only one of this host)")
                ->type_name("RUN");
            app.add_option("--interval", top->interval_s, "Seconds between two views (default: 1)")
                ->type_name("S");
            app.add_option("--serve", top->port,
                           "Show it as a page with a timeline, on this host's loopback; 0: a free port")
                ->type_name("PORT");
            app.add_flag("--once", top->once, "Print one view and end");
            app.add_flag("--json", top->json, "One view as JSON");
            return [top] { return run_top(*top); };
          }};
}

}  // namespace trireme::cli
