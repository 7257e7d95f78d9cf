#include "trireme/plan/goodput.h"

#include <cmath>

#include "trireme/base/error.h"

namespace trireme::plan {
namespace {

void check_time(const char* name, double seconds) {
  require(std::isfinite(seconds) && seconds >= 0, "goodput: ", name, " is ", seconds,
          "; expected 0 or more seconds");
}

void check_above_zero(const char* name, double seconds) {
  require(std::isfinite(seconds) && seconds > 0, "goodput: ", name, " is ", seconds,
          "; expected a number of seconds above 0");
}

/// Failures with exponential times between them, mean `mean_s`.
class Failures {
 public:
  explicit Failures(double mean_s) : mean_s_(mean_s) {
    require(mean_s > 0, "goodput: the mean time between interruptions is ", mean_s,
            " s; expected a number above 0");
  }

  /// Expected seconds spent in work of `work_s` that starts again from its beginning after each failure,
  /// until it succeeds: M (e^(work / M) - 1).
  double with_repeats_s(double work_s) const {
    return std::isinf(mean_s_) ? work_s : mean_s_ * std::expm1(work_s / mean_s_);
  }
  /// Expected failures before such work succeeds.
  double expected_in(double work_s) const { return std::expm1(work_s / mean_s_); }
  /// Expected attempts until such work succeeds.
  double attempts(double work_s) const { return std::exp(work_s / mean_s_); }

 private:
  double mean_s_;
};

/// Expected seconds until a segment is completed.
struct Spent {
  double training_s = 0, saving_s = 0, lost_s = 0, noticing_s = 0, restarting_s = 0;
};

Spent operator*(double times, const Spent& spent) {
  return {times * spent.training_s, times * spent.saving_s, times * spent.lost_s, times * spent.noticing_s,
          times * spent.restarting_s};
}

Spent operator+(const Spent& a, const Spent& b) {
  return {a.training_s + b.training_s, a.saving_s + b.saving_s, a.lost_s + b.lost_s,
          a.noticing_s + b.noticing_s, a.restarting_s + b.restarting_s};
}

struct Segment {
  double training_s = 0, saving_s = 0;
};

struct Recovery {
  double notice_s = 0, restart_s = 0;
};

/// Only attempts whose training succeeded reach the save. So of with_repeats_s(training + saving), the time
/// in saves is with_repeats_s(saving).
Spent spent_in(const Segment& segment, const Recovery& recovery, const Failures& failures) {
  const double whole_s = segment.training_s + segment.saving_s;
  const double recoveries = failures.expected_in(whole_s);
  return {.training_s = segment.training_s,
          .saving_s = failures.with_repeats_s(segment.saving_s),
          .lost_s = failures.attempts(segment.saving_s) * failures.with_repeats_s(segment.training_s) -
                    segment.training_s,
          .noticing_s = recoveries * failures.attempts(recovery.restart_s) * recovery.notice_s,
          .restarting_s = recoveries * failures.with_repeats_s(recovery.restart_s)};
}

Goodput shares_of(const Spent& spent) {
  const double all_s =
      spent.training_s + spent.saving_s + spent.lost_s + spent.noticing_s + spent.restarting_s;
  require(
      std::isfinite(all_s),
      "goodput: interruptions are so frequent that no interval between saves is ever completed; save more "
      "often, or shorten saves and restarts");
  return {.training = spent.training_s / all_s,
          .saving = spent.saving_s / all_s,
          .lost = spent.lost_s / all_s,
          .noticing = spent.noticing_s / all_s,
          .restarting = spent.restarting_s / all_s};
}

double interval_of(const FailureCosts& costs) {
  check_time("the interval between saves", costs.interval_s);
  check_time("the time of a save", costs.save_s);
  check_time("the time to notice a failure", costs.notice_s);
  check_time("the time to restart", costs.restart_s);
  return costs.interval_s > 0 ? costs.interval_s
                              : daly_interval_s(costs.save_s, costs.between_interruptions_s);
}

}  // namespace

double time_between_interruptions_s(std::int64_t hosts, double host_s) {
  require(hosts > 0, "goodput: found ", hosts, " hosts; expected at least 1");
  check_above_zero("the mean time between failures of a host", host_s);
  return host_s / static_cast<double>(hosts);
}

double young_interval_s(double save_s, double between_interruptions_s) {
  check_above_zero("the time of a save", save_s);
  check_above_zero("the mean time between interruptions", between_interruptions_s);
  return std::sqrt(2 * save_s * between_interruptions_s);
}

double daly_interval_s(double save_s, double between_interruptions_s) {
  const double young_s = young_interval_s(save_s, between_interruptions_s);
  if (save_s >= 2 * between_interruptions_s) return between_interruptions_s;
  const double ratio = save_s / (2 * between_interruptions_s);
  return young_s * (1 + std::sqrt(ratio) / 3 + ratio / 9) - save_s;
}

Goodput goodput(const FailureCosts& costs) {
  const Failures failures(costs.between_interruptions_s);
  const Segment segment = {.training_s = interval_of(costs), .saving_s = costs.save_s};
  return shares_of(spent_in(segment, {.notice_s = costs.notice_s, .restart_s = costs.restart_s}, failures));
}

Goodput elastic_goodput(const FailureCosts& costs, const ElasticCosts& elastic) {
  check_above_zero("the interval between copies", elastic.copy_interval_s);
  check_time("the time of a copy", elastic.copy_s);
  check_time("the time to regroup", elastic.regroup_s);
  const Failures failures(costs.between_interruptions_s);
  const Recovery recovery = {.notice_s = costs.notice_s, .restart_s = elastic.regroup_s};
  const double copies_of_save = interval_of(costs) / elastic.copy_interval_s;
  const Spent between_copies =
      spent_in({.training_s = elastic.copy_interval_s, .saving_s = elastic.copy_s}, recovery, failures);
  const Spent save = spent_in({.training_s = 0, .saving_s = costs.save_s}, recovery, failures);
  return shares_of(copies_of_save * between_copies + save);
}

}  // namespace trireme::plan
