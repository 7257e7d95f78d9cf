#include "trireme/telemetry/goodput.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <utility>

#include "trireme/base/bounded_file.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/replaced_file.h"
#include "trireme/base/text.h"
#include "trireme/base/unix_time.h"
#include "trireme/telemetry/run_summary.h"

namespace trireme::telemetry {
namespace {

constexpr std::array<std::string_view, kNumPhases> kNames = {
    "training", "data_wait", "saving", "evaluation", "lost", "starting", "recovering"};
constexpr std::uint64_t kMostBytes = 1 << 20;
constexpr const char* kRunning = "running";
constexpr const char* kEnded = "ended";

std::string seconds_of(std::size_t phase) { return text(kNames[phase], "_s"); }

/// Checks a number of a file that may be damaged.
double time_in(const Record& record, const std::string& name, const std::filesystem::path& path) {
  const double found = record.number(name, -1);
  if (!std::isfinite(found) || found < 0)
    throw DataError(text(path.string(), ": expected '", name, "', a number of 0 or more"));
  return found;
}

std::int64_t count_in(const Record& record, const std::string& name, const std::filesystem::path& path) {
  constexpr double kMost = 9e15;  // exact as a double
  const double found = time_in(record, name, path);
  if (found > kMost) throw DataError(text(path.string(), ": '", name, "' is ", found, "; expected a count"));
  return static_cast<std::int64_t>(found);
}

std::string percent(double share) {
  char words[32];
  std::snprintf(words, sizeof words, "%.1f %%", 100 * share);
  return words;
}

}  // namespace

std::string_view name_of(Phase phase) { return kNames[static_cast<std::size_t>(phase)]; }

double GoodputRecord::wall_s() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

double GoodputRecord::share(Phase phase) const {
  const double wall = wall_s();
  return wall > 0 ? seconds[static_cast<std::size_t>(phase)] / wall : 0;
}

double GoodputRecord::between_interruptions_s() const {
  return interruptions > 0 ? wall_s() / static_cast<double>(interruptions)
                           : std::numeric_limits<double>::infinity();
}

double GoodputRecord::training_until_s(std::int64_t step) const {
  Mark before, after = {steps, seconds[static_cast<std::size_t>(Phase::kTraining)]};
  if (step >= after.step) return after.training_s;
  for (const Mark& mark : marks) {
    if (mark.step <= step) before = mark;
    if (mark.step > step) {
      after = mark;
      break;
    }
  }
  const double share =
      static_cast<double>(step - before.step) / static_cast<double>(after.step - before.step);
  return before.training_s + share * (after.training_s - before.training_s);
}

GoodputRecord continued(GoodputRecord record, std::int64_t step) {
  double& training_s = record.seconds[static_cast<std::size_t>(Phase::kTraining)];
  const double kept_s = record.training_until_s(step);
  record.seconds[static_cast<std::size_t>(Phase::kLost)] += training_s - kept_s;
  training_s = kept_s;
  record.lost_steps += std::max<std::int64_t>(record.steps - step, 0);
  record.steps = step;
  std::erase_if(record.marks, [&](const GoodputRecord::Mark& mark) { return mark.step > step; });
  if (!record.ended) ++record.interruptions;
  return record;
}

void add_goodput(Record& summary, const GoodputRecord& goodput) {
  summary.fields.emplace_back("goodput", goodput.share(Phase::kTraining));
  for (std::size_t phase = 1; phase < kNumPhases; ++phase)
    summary.fields.emplace_back(text("goodput_", kNames[phase]), goodput.share(static_cast<Phase>(phase)));
  summary.fields.emplace_back("goodput_wall_s", goodput.wall_s());
  summary.fields.emplace_back("lost_steps", goodput.lost_steps);
  summary.fields.emplace_back("interruptions", goodput.interruptions);
}

std::string describe(const GoodputRecord& goodput) {
  constexpr double kLeast = 5e-4;
  std::string rest;
  for (std::size_t phase = 1; phase < kNumPhases; ++phase) {
    const double share = goodput.share(static_cast<Phase>(phase));
    if (share < kLeast) continue;
    std::string name(kNames[phase]);
    std::replace(name.begin(), name.end(), '_', ' ');
    rest += text(rest.empty() ? ": " : ", ", name, " ", percent(share));
    if (static_cast<Phase>(phase) == Phase::kLost) rest += text(" (", goodput.lost_steps, " steps)");
  }
  return text("goodput ", percent(goodput.share(Phase::kTraining)), " of ", human_duration(goodput.wall_s()),
              rest,
              goodput.interruptions > 0 ? text("; interruptions: ", goodput.interruptions) : std::string());
}

std::optional<GoodputRecord> read_goodput(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  const Record found = parse_summary(read_bounded_file(path, kMostBytes, "goodput of a run"), path);
  GoodputRecord goodput;
  for (std::size_t phase = 0; phase < kNumPhases; ++phase)
    goodput.seconds[phase] = time_in(found, seconds_of(phase), path);
  goodput.steps = count_in(found, "steps", path);
  goodput.lost_steps = count_in(found, "lost_steps", path);
  goodput.interruptions = count_in(found, "interruptions", path);
  goodput.until_unix_s = time_in(found, "until_unix_s", path);
  goodput.ended = found.words("status") == kEnded;
  for (std::size_t i = 0; i < GoodputRecord::kMaxMarks && found.has(text("mark_", i, "_step")); ++i) {
    goodput.marks.push_back({count_in(found, text("mark_", i, "_step"), path),
                             time_in(found, text("mark_", i, "_training_s"), path)});
    const GoodputRecord::Mark& mark = goodput.marks.back();
    const bool ascends = i == 0 || mark.step > goodput.marks[i - 1].step;
    if (!ascends || mark.step > goodput.steps)
      throw DataError(text(path.string(), ": step ", mark.step, " of mark ", i, " is out of order"));
  }
  return goodput;
}

void write_goodput(const std::filesystem::path& path, const GoodputRecord& goodput) {
  Record record{.event = "goodput", .fields = {{"status", std::string(goodput.ended ? kEnded : kRunning)}}};
  for (std::size_t phase = 0; phase < kNumPhases; ++phase)
    record.fields.emplace_back(seconds_of(phase), goodput.seconds[phase]);
  record.fields.emplace_back("steps", goodput.steps);
  record.fields.emplace_back("lost_steps", goodput.lost_steps);
  record.fields.emplace_back("interruptions", goodput.interruptions);
  record.fields.emplace_back("until_unix_s", goodput.until_unix_s);
  for (std::size_t i = 0; i < goodput.marks.size(); ++i) {
    record.fields.emplace_back(text("mark_", i, "_step"), goodput.marks[i].step);
    record.fields.emplace_back(text("mark_", i, "_training_s"), goodput.marks[i].training_s);
  }
  replace_file(path, to_json_line(record) + "\n");
}

void GoodputMeter::open(const std::filesystem::path& path, std::optional<GoodputRecord> earlier,
                        std::int64_t step, double began_unix_s, const Log& log) {
  path_ = path;
  log_ = log;
  const bool failed = earlier && !earlier->ended;
  first_ = failed ? Phase::kRecovering : Phase::kStarting;
  const double since_unix_s = failed ? earlier->until_unix_s : began_unix_s;
  if (earlier) record_ = continued(std::move(*earlier), step);
  record_.steps = step;
  record_.ended = false;
  // Clocks of two hosts differ: the difference may be negative.
  of(first_) += std::max(unix_now_s() - since_unix_s, 0.0);
  last_s_ = now_s();
}

double GoodputMeter::since_last_s() {
  const double now = now_s();
  return now - std::exchange(last_s_, now);
}

void GoodputMeter::begin_steps() {
  lap(first_);
  saving_before_s_ = of(Phase::kSaving);
  write(record_.steps);
}

void GoodputMeter::lap(Phase phase) {
  if (!path_.empty()) of(phase) += since_last_s();
}

void GoodputMeter::step(double data_wait_s, double saving_s) {
  if (path_.empty()) return;
  const double whole_s = since_last_s();
  const double data_s = std::clamp(data_wait_s, 0.0, whole_s);
  const double stalled_s = std::clamp(saving_s, 0.0, whole_s - data_s);
  of(Phase::kDataWait) += data_s;
  of(Phase::kSaving) += stalled_s;
  of(Phase::kTraining) += whole_s - data_s - stalled_s;
}

void GoodputMeter::saved(std::int64_t step) {
  if (path_.empty()) return;
  lap(Phase::kSaving);
  auto& marks = record_.marks;
  if (!marks.empty() && marks.back().step >= step) return;
  if (marks.size() == GoodputRecord::kMaxMarks) marks.erase(marks.begin());
  marks.push_back({step, of(Phase::kTraining)});
}

void GoodputMeter::write(std::int64_t steps) {
  if (path_.empty()) return;
  record_.steps = steps;
  record_.until_unix_s = unix_now_s() - (now_s() - last_s_);
  try {
    write_goodput(path_, record_);
  } catch (const DataError& error) {
    if (!warned_) log_->warning("the goodput of this run is not kept for a restart: ", error.what());
    warned_ = true;
  }
}

void GoodputMeter::end(std::int64_t steps) {
  record_.ended = true;
  write(steps);
}

}  // namespace trireme::telemetry
