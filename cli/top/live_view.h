#pragma once
// A live run that is looked at again and again: finds it, takes samples, and makes views of them. One thread.

#include <deque>
#include <string>

#include "trireme/telemetry/live_run.h"

namespace trireme::cli {

/// The run that `wanted` names: its folder, its name in the folder `runs`, or the process id of its launcher
/// or of a rank; empty: the newest one below `runs`, else the only one of this host. Throws InvalidArgument
/// that tells why it is not to be seen here, and what to do instead.
telemetry::LiveRun choose_run(const std::string& wanted);

class LiveView {
 public:
  explicit LiveView(telemetry::LiveRun run);

  /// Whether there are ranks to look at.
  enum class State {
    kLive,
    kWaits,  ///< no rank runs, and the launcher may start them again; views are those of before
    kEnded,
  };
  /// Takes a sample, where a rank runs.
  State sample();
  bool has_view() const { return !samples_.empty(); }
  /// Rates over the last seconds; after the first sample, since the ranks began.
  telemetry::RunView view() const;
  /// The spans since the last sample only.
  telemetry::RunView latest() const;
  const std::string& run() const { return run_.run; }

 private:
  void find_again();
  State without_ranks() const;

  telemetry::LiveRun run_;
  std::deque<telemetry::RunSample> samples_;
  int num_samples_ = 0;
};

}  // namespace trireme::cli
