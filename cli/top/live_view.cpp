#include "cli/top/live_view.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/printable.h"
#include "trireme/telemetry/run_data.h"
#include "trireme/telemetry/run_end.h"
#include "trireme/telemetry/run_listing.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using telemetry::LiveRun;

constexpr const char* kUsualFolder = "runs";
constexpr double kWindow_s = 10;
/// Samples between two searches: ranks may restart, or join later.
constexpr int kSearchEvery = 5;

fs::path real(const fs::path& path) {
  std::error_code ignored;
  return fs::weakly_canonical(fs::absolute(path, ignored), ignored);
}

std::string words_of(const LiveRun& run) {
  const std::string what = run.run.empty() ? text("process ", run.launcher_pid) : printable(run.run);
  return text(what, " (", run.ranks.size(), run.ranks.size() == 1 ? " rank)" : " ranks)");
}

std::string list_of(const std::vector<LiveRun>& runs) {
  if (runs.empty()) return "no run of this user is live on this host";
  std::vector<std::string> names;
  for (const LiveRun& run : runs) names.push_back(words_of(run));
  return "live on this host: " + join(names);
}

/// For a run folder without ranks on this host.
[[noreturn]] void explain(const fs::path& folder, const std::vector<LiveRun>& runs) {
  const telemetry::ListedRun listed = telemetry::look_at_run(folder);
  if (!listed.problem.empty()) throw InvalidArgument(text(listed.problem, "; ", list_of(runs)));
  const std::string name = printable(folder.string());
  if (listed.run.status == "running") {
    const telemetry::LockHolder holder = telemetry::holder_of(folder / "run.lock");
    throw InvalidArgument(text("the run in ", name,
                               " is live, but none of its ranks is to be seen here: ", printable(holder.who),
                               "; start trireme top on that host, as the user of the run, outside of other "
                               "containers"));
  }
  throw InvalidArgument(text("the run in ", name, " is not live: ", printable(listed.run.status), " after ",
                             listed.run.steps, " step(s); for its results: trireme runs ",
                             printable(folder.parent_path().string()), ", and report.html in its folder"));
}

std::vector<LiveRun> those_below(const fs::path& folder, const std::vector<LiveRun>& runs) {
  std::vector<LiveRun> below;
  for (const LiveRun& run : runs) {
    if (!run.run.empty() && fs::path(run.run).parent_path() == real(folder)) below.push_back(run);
  }
  return below;
}

std::set<int> pids_of(const LiveRun& run) {
  std::set<int> pids;
  for (const telemetry::LiveRank& rank : run.ranks) pids.insert(rank.pid);
  return pids;
}

bool has_process(const LiveRun& run, const std::string& pid) {
  return text(run.launcher_pid) == pid ||
         std::any_of(run.ranks.begin(), run.ranks.end(),
                     [&](const telemetry::LiveRank& rank) { return text(rank.pid) == pid; });
}

}  // namespace

LiveRun choose_run(const std::string& wanted) {
  const std::vector<LiveRun> runs = telemetry::find_live_runs();
  if (wanted.empty()) {
    const std::vector<LiveRun> usual = those_below(kUsualFolder, runs);
    if (!usual.empty()) return usual.back();
    if (runs.size() == 1) return runs.front();
    throw InvalidArgument(text("which run? ", list_of(runs),
                               runs.empty() ? "; start one, for example: trireme train FILE.toml -n 2"
                                            : "; name one: trireme top RUN"));
  }
  std::error_code ignored;
  const bool is_name = !fs::exists(wanted, ignored) && fs::exists(fs::path(kUsualFolder) / wanted, ignored);
  const fs::path folder = is_name ? fs::path(kUsualFolder) / wanted : fs::path(wanted);
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    if ((!run->run.empty() && fs::path(run->run) == real(folder)) || has_process(*run, wanted)) return *run;
  }
  if (fs::exists(folder, ignored)) explain(folder, runs);
  throw InvalidArgument(text("there is no run '", printable(wanted),
                             "': expected its folder, its name below runs/, or a process id; ",
                             list_of(runs)));
}

LiveView::LiveView(LiveRun run) : run_(std::move(run)) {}

/// Finds the same folder, or the same launcher.
void LiveView::find_again() {
  for (LiveRun& run : telemetry::find_live_runs()) {
    const bool same =
        run_.run.empty() ? run.launcher_pid == run_.launcher_pid && run.run.empty() : run.run == run_.run;
    if (!same) continue;
    if (pids_of(run) != pids_of(run_)) samples_.clear();  // rates of other processes are not comparable
    run_ = std::move(run);
  }
}

LiveView::State LiveView::without_ranks() const {
  const telemetry::ProcessSample launcher = telemetry::sample_process(run_.launcher_pid);
  const bool may_start_again = run_.is_launched && launcher.state != '?' && launcher.state != 'Z';
  return may_start_again ? State::kWaits : State::kEnded;
}

LiveView::State LiveView::sample() {
  telemetry::RunSample sample = telemetry::sample_run(run_.ranks);
  const bool lost = sample.ranks.size() < run_.ranks.size();
  if (lost || ++num_samples_ % kSearchEvery == 0) {
    find_again();
    sample = telemetry::sample_run(run_.ranks);
  }
  if (sample.ranks.empty()) return without_ranks();
  samples_.push_back(std::move(sample));
  const auto window_ns = static_cast<std::int64_t>(kWindow_s * 1e9);
  while (samples_.size() > 2 && samples_.back().at_ns - samples_[1].at_ns >= window_ns) samples_.pop_front();
  return State::kLive;
}

telemetry::RunView LiveView::view() const {
  static const telemetry::RunSample kNothing;
  return telemetry::view_between(samples_.size() > 1 ? samples_.front() : kNothing, samples_.back());
}

telemetry::RunView LiveView::latest() const {
  static const telemetry::RunSample kNothing;
  return telemetry::view_between(samples_.size() > 1 ? samples_[samples_.size() - 2] : kNothing,
                                 samples_.back());
}

}  // namespace trireme::cli
