#pragma once
// train.adapt: one controller for everything that a run changes by itself to shorten its steps. It changes
// one thing at a time, and compares the median of kWindow steps before and after. It keeps a change only if
// steps have become shorter by more than their spread. Otherwise it reverts the change, and the knob waits
// twice as long as the last time. Of several proposals it tries the one with the largest estimated gain
// first. It tries none whose estimated gain is below the spread. It decides from reports of steps only, which
// are the same on all ranks, so all ranks decide the same. (Measured choices during a run: STAR-MPI, Faraj et
// al., ICS 2006.) One thread.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/train/step/decision.h"
#include "trireme/train/step/step_reports.h"

namespace trireme::train {

/// One thing that can be changed between steps. Its answers depend on reports alone, and on numbers that are
/// the same on all ranks.
class Knob {
 public:
  /// A value that may shorten steps.
  struct Proposal {
    std::string to, reason;
    double estimated_s = 0;  ///< seconds per step with it; 0: not estimated
  };

  virtual ~Knob() = default;
  virtual std::string name() const = 0;
  virtual std::string value() const = 0;
  /// A better value than the current one, by those steps; none: there is no better one. `step_s`: their
  /// median.
  virtual std::optional<Proposal> propose(std::span<const StepReport> window, double step_s) = 0;
  /// The last proposal holds from step `from` on, counted from 0.
  virtual void apply(std::int64_t from) = 0;
  /// The value before apply() holds from there on.
  virtual void revert(std::int64_t from) = 0;
  /// After step number `step`, with the value of a new run.
  virtual void start_over(std::int64_t /*step*/) {}
};

class AdaptiveController {
 public:
  /// Of equal gains the first one is tried first; those without an estimate come last.
  explicit AdaptiveController(std::vector<std::unique_ptr<Knob>> knobs) {
    for (auto& knob : knobs) knobs_.push_back({.knob = std::move(knob)});
  }

  /// The report of a step, in the order of steps. A change holds from step `from` on, counted from 0, the
  /// first that every rank can still change.
  std::vector<Decision> observe(const StepReport& report, std::int64_t from);
  /// From step `from` on steps are others for a reason of its own: a change that was not judged yet is taken
  /// back.
  std::optional<Decision> disturb(std::int64_t step, std::int64_t from, const std::string& why);
  /// After step number `step`, as a new run.
  void start_over(std::int64_t step);

  static constexpr std::size_t kWindow = 16;    ///< steps, of which the median is taken
  static constexpr std::int64_t kSettling = 2;  ///< first steps after a change, which are not looked at

 private:
  struct Waiting {
    std::unique_ptr<Knob> knob;
    int patience = 1, windows = 0;  ///< windows: still to wait
    bool told_skipped = false;      ///< since its last trial
  };
  /// Seconds of a step.
  struct Level {
    double median_s = 0, error_s = 0;  ///< error_s: standard error of the median
  };
  struct Trial {
    Waiting* of;
    Decision decision;
    Level before;
    std::int64_t full_batch;  ///< samples of the steps before
  };

  struct Candidate {
    Waiting* of;
    Knob::Proposal proposal;
    std::optional<double> gain_s;  ///< as estimated
  };

  static Level level_of(std::span<const StepReport> window);
  static double least_gain_s(const Level& before, const Level& after);
  Decision judge(const Level& after, std::int64_t step, std::int64_t from);
  Decision take_back(std::int64_t step, std::int64_t from, std::string why);
  std::vector<Candidate> ask_knobs(const Level& now);
  std::vector<Decision> try_next(const Level& now, std::int64_t step, std::int64_t from);
  Decision try_out(const Candidate& candidate, const Level& now, std::int64_t step, std::int64_t from);
  void look_from(std::int64_t from);

  std::vector<Waiting> knobs_;
  std::vector<StepReport> window_;
  std::int64_t from_ = 0;  ///< the step from which the values of now hold
  std::optional<Trial> trial_;
};

}  // namespace trireme::train
