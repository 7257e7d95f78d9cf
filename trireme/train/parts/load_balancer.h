#pragma once
// data.balance = "dynamic": slower replicas get fewer samples of a batch, and faster replicas get more. All
// ranks see the same reports and decide the same. The gradient is the mean over the global batch, independent
// of the assignment. Only the order of its sums differs from run to run. Semi-dynamic load balancing (Chen et
// al., "Semi-Dynamic Load Balancing", SoCC 2020): shares change between steps, in proportion to each
// replica's samples per second. One thread.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/data/sampler.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/step/step_reports.h"

namespace trireme::train {

class LoadBalancer {
 public:
  /// Replicas and batches of the load balancer.
  struct Options {
    data::Shares equal;             ///< of each replica, at the start
    std::int64_t least = 1;         ///< that a replica keeps
    std::int64_t microbatches = 1;  ///< of a replica
    std::vector<int> replica = {};  ///< of each rank
  };
  /// A change of shares for a stream.
  struct Change {
    std::int64_t from = 0;  ///< the step, counted from 0, from which on
    data::Shares shares;
    std::string why;
  };

  /// Better shares by the measured work of replicas, and the seconds that the slowest one works, before and
  /// after.
  struct Proposal {
    data::Shares shares;
    double slowest_s = 0, estimated_s = 0;
    std::string why;
  };

  explicit LoadBalancer(Options options);
  /// Null where the plan does not ask for it, or has one replica.
  static std::unique_ptr<LoadBalancer> make(const ParallelPlan& plan);

  /// Of a batch of train.global_batch samples; smaller full ones, of a ramp, are split in proportion.
  const data::Shares& now() const { return shares_; }
  /// Adds the reports of all ranks on a step, in the order of steps. Returns a change, from step `from` on,
  /// where the slowest replica would need a twentieth less. It needs kWindow steps with the current shares. A
  /// change that did not shorten steps is reverted, and the next one waits longer.
  std::optional<Change> observe(const StepReport& report, std::int64_t from);
  /// After step number `step`, in equal shares, as a stream after seek().
  void start_over(std::int64_t step);

  /// For callers with their own measurements: better shares where the slowest replica would need a twentieth
  /// less than in those steps. The steps used the current shares, with full batches of one size.
  std::optional<Proposal> propose(std::span<const StepReport> window);
  Change change_to(data::Shares shares, std::int64_t from, std::string why);

  static constexpr std::size_t kWindow = 16;  ///< steps, of which the median is taken

 private:
  void begin_batches_of(std::int64_t samples, std::int64_t step);
  std::optional<Change> decide(const std::vector<double>& work_s, std::int64_t from);
  data::Shares in_proportion(const std::vector<double>& work_s) const;
  /// Of a full batch as it is looked at.
  data::Shares of_batch(const data::Shares& shares) const;
  std::vector<double> work_of_replicas(const StepReport& report) const;
  std::optional<Proposal> proposal_for(const std::vector<double>& work_s) const;

  const Options options_;
  const std::int64_t batch_, most_;  ///< samples: of all, and that a replica takes
  data::Shares shares_;
  std::int64_t looked_at_;                   ///< samples of the full batches in the window
  std::int64_t from_ = 0;                    ///< the step from which these hold, in those shares
  std::vector<std::vector<double>> window_;  ///< work of each replica in each step
  struct Before {
    data::Shares shares;
    double slowest_s = 0;
  };
  std::optional<Before> before_;    ///< times before the last change, which has to improve them
  int patience_ = 1, waiting_ = 0;  ///< windows
};

}  // namespace trireme::train
