#include "trireme/data/internal/read_ahead_tuner.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/text.h"

namespace trireme::data {
namespace {

constexpr double kStall = 0.01;     ///< share of time spent waiting that justifies a change
constexpr double kBusy = 0.8;       ///< share of time above which busy workers are the bottleneck
constexpr double kFaster = 1.05;    ///< speedup that another worker has to bring
constexpr double kOtherWork = 0.8;  ///< a rate below this fraction is another workload: all is open again
constexpr int kIdleWindows = 8;
constexpr double kSpare = 1.3;  ///< idle workers before one is removed

double rate_of(const LoadingWindow& window) {
  return static_cast<double>(window.steps) / std::max(window.wall_s, 1e-9);
}

/// Rounds to a tenth.
double rounded(double value) { return std::round(value * 10) / 10; }

std::string percent(double share) { return text(std::round(100 * share), " %"); }

std::string threads(int count) { return text(count, count == 1 ? " thread reads" : " threads read"); }

}  // namespace

std::string ReadAheadTuner::judge_added(const LoadingWindow& window) {
  just_added_ = false;
  const double rate = rate_of(window);
  if (rate >= rate_before_ * kFaster) return "";
  useless_from_ = now_.workers--;
  useless_rate_ = rate_before_;
  return text(threads(now_.workers), " ahead again: with one more came ", rounded(rate), " steps/s, before ",
              rounded(rate_before_));
}

std::string ReadAheadTuner::add_worker(const LoadingWindow& window) {
  const bool other_work = rate_of(window) < useless_rate_ * kOtherWork;
  if (other_work) useless_from_ = 0;
  if (now_.workers >= limits_.max_workers || now_.workers + 1 == useless_from_) return "";
  just_added_ = true;
  rate_before_ = rate_of(window);
  ++now_.workers;
  return text(threads(now_.workers), " ahead: steps waited ", percent(window.waited_s / window.wall_s),
              " of the time for data, and all that read were busy");
}

std::string ReadAheadTuner::look(const LoadingWindow& window) {
  if (just_added_) {
    if (std::string taken_back = judge_added(window); !taken_back.empty()) return taken_back;
  }
  const double stall = window.waited_s / std::max(window.wall_s, 1e-9);
  const double busy_workers = window.busy_s / std::max(window.wall_s, 1e-9);
  if (stall > kStall) {
    idle_windows_ = 0;
    if (busy_workers > kBusy * now_.workers) return add_worker(window);
    if (2 * now_.prefetch * window.bytes_of_step > limits_.memory_bytes) return "";
    now_.prefetch *= 2;
    return text(now_.prefetch, " steps are read ahead: steps waited ", percent(stall),
                " of the time for data, while what reads was busy for ",
                percent(busy_workers / now_.workers));
  }
  idle_windows_ = now_.workers - busy_workers > kSpare ? idle_windows_ + 1 : 0;
  if (idle_windows_ < kIdleWindows) return "";
  idle_windows_ = 0;
  --now_.workers;
  return text(threads(now_.workers), " ahead: ", rounded(busy_workers), " had something to do");
}

}  // namespace trireme::data
