#include "trireme/telemetry/run_view.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/base/median.h"
#include "trireme/base/printable.h"
#include "trireme/base/text.h"

namespace trireme::telemetry {
namespace {

using Times = std::array<double, kNumActivities>;

constexpr double kNs = 1e-9;

/// Seconds of a rank by Activity, up to `at_ns`, including the current span.
struct TimesOfRank {
  Times spent = {}, waited = {};
};

TimesOfRank times_of(const Usage& usage, std::int64_t at_ns) {
  TimesOfRank times;
  for (std::size_t i = 0; i < kNumActivities; ++i) {
    times.spent[i] = static_cast<double>(usage.spent_ns[i]) * kNs;
    times.waited[i] = static_cast<double>(usage.waited_ns[i]) * kNs;
  }
  if (usage.spans.empty()) return times;
  const double open_s = static_cast<double>(std::max<std::int64_t>(at_ns - usage.now.begin_ns, 0)) * kNs;
  const auto place = static_cast<std::size_t>(usage.now.activity);
  times.spent[place] += open_s;
  if (usage.now.waits) times.waited[place] += open_s;
  return times;
}

double per_second(std::uint64_t now, std::uint64_t before, double passed_s) {
  return now > before ? static_cast<double>(now - before) / passed_s : 0;
}

std::optional<DiskRate> disk_of_process(const ProcessSample& before, const ProcessSample& now,
                                        double passed_s) {
  if (now.disk_read_bytes < 0 || now.disk_written_bytes < 0) return std::nullopt;
  const auto rate = [passed_s](std::int64_t later, std::int64_t earlier) {
    return static_cast<double>(std::max<std::int64_t>(later - std::max<std::int64_t>(earlier, 0), 0)) /
           passed_s;
  };
  return DiskRate{.read = rate(now.disk_read_bytes, before.disk_read_bytes),
                  .written = rate(now.disk_written_bytes, before.disk_written_bytes)};
}

/// "0B3" of "step 12: 0B3": the step has its own column.
std::string without_step(const std::string& action) {
  const std::size_t colon = action.find(": ");
  return action.starts_with("step ") && colon != std::string::npos ? action.substr(colon + 2) : action;
}

std::vector<ActivitySpan> spans_after(const Usage& usage, std::int64_t begin_ns) {
  auto first = std::find_if(usage.spans.begin(), usage.spans.end(),
                            [&](const ActivitySpan& span) { return span.begin_ns > begin_ns; });
  if (first != usage.spans.begin()) --first;  // that span continues after begin_ns
  return {first, usage.spans.end()};
}

/// Without an earlier sample, rates and shares are those since the start of the process.
RankView view_of(const RankSample* before, std::int64_t before_ns, const RankSample& now,
                 std::int64_t now_ns) {
  static const RankSample kNothing;
  const RankSample& from = before != nullptr ? *before : kNothing;
  const Usage& usage = now.usage;
  const TimesOfRank then = times_of(from.usage, before_ns), times = times_of(usage, now_ns);
  const double since_s = before != nullptr ? static_cast<double>(now_ns - before_ns) * kNs
                                           : std::accumulate(times.spent.begin(), times.spent.end(), 0.0);
  const double passed_s = std::max(since_s, 1e-6);
  RankView view{.rank = now.status.rank,
                .pid = now.process.pid,
                .role = usage.role,
                .step = now.status.step,
                .action = now.status.own_work.empty() ? without_step(now.status.action) : now.status.own_work,
                .operation = now.status.operation,
                .activity = usage.now.activity,
                .waits = usage.now.waits,
                .stopped = now.process.state == 'T' || now.process.state == 't'};
  if (!usage.spans.empty())
    view.for_s = static_cast<double>(std::max<std::int64_t>(now_ns - usage.now.begin_ns, 0)) * kNs;
  view.window_s = passed_s;
  // A single sample gives no rate: a resumed rank does not begin with step 0.
  if (before != nullptr) view.steps_per_s = per_second(now.status.step, from.status.step, passed_s);
  for (std::size_t i = 0; i < kNumActivities; ++i) {
    const double waited = std::max(times.waited[i] - then.waited[i], 0.0);
    view.own_shares[i] = std::clamp((times.spent[i] - then.spent[i] - waited) / passed_s, 0.0, 1.0);
    view.wait_share += waited / passed_s;
    view.own_share += view.own_shares[i];
  }
  view.wait_share = std::clamp(view.wait_share, 0.0, 1.0);
  view.own_share = std::clamp(view.own_share, 0.0, 1.0);
  view.data_share = view.own_shares[static_cast<std::size_t>(Activity::kData)];
  if (now.process.cpu_s >= 0 && from.process.cpu_s >= 0)
    view.cpu_share = std::max(now.process.cpu_s - from.process.cpu_s, 0.0) / passed_s;
  if (const std::int64_t looked = usage.loader_batches - from.usage.loader_batches; looked > 0)
    view.loader_fill =
        std::clamp((usage.loader_fill - from.usage.loader_fill) / static_cast<double>(looked), 0.0, 1.0);
  view.loader_depth = usage.loader_depth;
  view.rss_bytes = now.process.rss_bytes;
  view.memory = usage.memory;
  view.device_memory = usage.device_memory;
  view.sent_per_s = per_second(usage.sent_bytes, from.usage.sent_bytes, passed_s);
  for (std::size_t use = 0; use < kNumDiskUses; ++use) {
    view.disk[use] = {.read = per_second(usage.disk[use].read, from.usage.disk[use].read, passed_s),
                      .written = per_second(usage.disk[use].written, from.usage.disk[use].written, passed_s)};
  }
  view.process_disk = disk_of_process(from.process, now.process, passed_s);
  view.spans = spans_after(usage, before_ns);
  return view;
}

const RankSample* same_process(const RunSample& sample, const RankSample& wanted) {
  const auto found = std::find_if(sample.ranks.begin(), sample.ranks.end(), [&](const RankSample& rank) {
    return rank.process.pid == wanted.process.pid && rank.status.rank == wanted.status.rank;
  });
  return found == sample.ranks.end() ? nullptr : &*found;
}

Activity most_above(const RankView& rank, const std::vector<const RankView*>& peers) {
  Activity most = rank.activity;
  double excess = 0;
  for (std::size_t i = 0; i < kNumActivities; ++i) {
    std::vector<double> others;
    for (const RankView* peer : peers) others.push_back(peer->own_shares[i]);
    const double above = rank.own_shares[i] - (others.empty() ? 0 : median(others));
    if (above <= excess) continue;
    excess = above;
    most = static_cast<Activity>(i);
  }
  return most;
}

std::string percent(double share) { return text(std::lround(share * 100), " %"); }

}  // namespace

RunView view_between(const RunSample& before, const RunSample& now) {
  RunView view{.host = now.host, .at_ns = now.at_ns, .pressure = now.pressure};
  for (const RankSample& rank : now.ranks) {
    view.ranks.push_back(view_of(same_process(before, rank), before.at_ns, rank, now.at_ns));
    view.window_s = std::max(view.window_s, view.ranks.back().window_s);
    view.world_size = std::max(view.world_size, rank.usage.world_size);
    if (view.run.empty()) view.run = rank.status.run;
  }
  std::stable_sort(view.ranks.begin(), view.ranks.end(), [](const RankView& a, const RankView& b) {
    return a.stopped != b.stopped ? a.stopped : a.own_share > b.own_share;
  });
  return view;
}

std::optional<Straggler> straggler(const RunView& view) {
  std::optional<Straggler> found;
  for (const RankView& rank : view.ranks) {
    std::vector<const RankView*> peers;
    std::vector<double> own;
    for (const RankView& other : view.ranks) {
      if (&other == &rank || other.role != rank.role) continue;
      peers.push_back(&other);
      own.push_back(other.own_share);
    }
    const double usual = own.empty() ? rank.own_share : median(own);
    const double cost = rank.own_share - usual;
    if (cost <= kMinCost && !rank.stopped) continue;
    const bool first = !found || (rank.stopped && !found->stopped);
    if (!first && (found->stopped != rank.stopped || cost <= found->cost)) continue;
    found = {.rank = rank.rank,
             .activity = most_above(rank, peers),
             .action = rank.action,
             .cost = std::max(cost, 0.0),
             .longer = usual > 0 ? std::max(rank.own_share / usual - 1, 0.0) : 0,
             .stopped = rank.stopped};
  }
  return found;
}

std::string describe(const Straggler& straggler) {
  const std::string now =
      straggler.action.empty() ? std::string() : text(", now: ", printable(straggler.action));
  if (straggler.stopped)
    return text("rank ", straggler.rank, " is stopped by a signal", now, "; the others wait for it");
  // Compared with almost idle peers, a ratio is meaningless.
  constexpr double kMaxTold = 10;
  const std::string longer =
      straggler.longer > 0 && straggler.longer < kMaxTold
          ? text(" takes ", percent(straggler.longer), " longer than its peers, which costs ")
          : std::string(" takes longer than its peers, which costs ");
  return text("rank ", straggler.rank, longer, percent(straggler.cost), " of the time: most in ",
              name_of(straggler.activity), now);
}

}  // namespace trireme::telemetry
