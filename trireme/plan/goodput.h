#pragma once
// Goodput of a training job: the expected share of its wall time that trained, and the use of the rest. A
// renewal model in closed form. Failures are exponential, one rate for the whole job. None happens between a
// failure and its detection, as the job is idle then. Failures may happen at all other times: training,
// saves, restarts.
//
// A segment is `interval_s` of training and a save of `save_s`. M is the mean time between interruptions. Let
// s = interval_s + save_s, D = notice_s and R = restart_s. A segment takes (e^(s/M) - 1) e^(R/M) (M + D)
// seconds in the mean. With D = 0 that is the complete cost function of Daly ("A higher order estimate of the
// optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22, 2006). Values and
// pure functions; thread-safe.

#include <cstdint>

namespace trireme::plan {

/// Of the whole job whose `hosts` fail independently, `host_s` apart in the mean: host_s / hosts. Throws
/// InvalidArgument: no host, a time that is not above 0.
double time_between_interruptions_s(std::int64_t hosts, double host_s);

/// Costs of failures and saves, in seconds.
struct FailureCosts {
  double between_interruptions_s = 0;  ///< mean, of the whole job; infinity: no failures
  double save_s = 0;                   ///< for which a save blocks training
  double interval_s = 0;               ///< of training between two saves; 0: daly_interval_s()
  double notice_s = 0;                 ///< from a failure to its detection
  double restart_s = 0;                ///< from the detection to the first new step: start, load
};

/// Costs of survivors that continue from a peer's memory instead of a full restart, in seconds.
struct ElasticCosts {
  double copy_interval_s = 0;  ///< of training between two copies into a peer's memory
  double copy_s = 0;           ///< for which a copy blocks training
  double regroup_s = 0;        ///< from the detection to the first new step
};

/// Shares of the wall time; together 1.
struct Goodput {
  double training = 0;    ///< the goodput: steps that count
  double saving = 0;      ///< saves and copies, those that a failure cut off included
  double lost = 0;        ///< training that a failure made void
  double noticing = 0;    ///< from failures to their detection
  double restarting = 0;  ///< restarts or regroupings, those that failed included
};

/// sqrt(2 C M): Young, "A first order approximation to the optimum checkpoint interval", CACM 17, 1974.
double young_interval_s(double save_s, double between_interruptions_s);

/// Daly 2006, the higher order estimate: the training time between saves with nearly the largest goodput,
/// within 0.2 % of it where save_s is at most M / 2; M where save_s is 2 M or more. Both throw
/// InvalidArgument: a time that is not above 0, or infinite.
double daly_interval_s(double save_s, double between_interruptions_s);

/// With a full restart from the newest save after each interruption. Throws InvalidArgument: a negative or
/// infinite time; no failures, or a save without cost, and no interval; failures so frequent that no segment
/// is ever completed.
Goodput goodput(const FailureCosts& costs);

/// Survivors continue from the newest copy after each interruption, and a spare host replaces the lost one
/// within `regroup_s`. Saves continue with the interval of `costs`, for failures that lose all copies, which
/// are not modelled; `costs.restart_s` is not used. A failure during a save repeats that save. Throws
/// InvalidArgument as goodput() does, or for a copy interval that is not above 0.
Goodput elastic_goodput(const FailureCosts& costs, const ElasticCosts& elastic);

}  // namespace trireme::plan
