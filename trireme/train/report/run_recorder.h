#pragma once
// Writes the files of a run: metrics.jsonl, config.toml, summary.json, the end.json of a normal end, the
// console and console.log. Only rank 0 makes one. One thread.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/chosen_network.h"
#include "trireme/data/loading_report.h"
#include "trireme/telemetry/append_stream.h"
#include "trireme/telemetry/device_gauge.h"
#include "trireme/telemetry/rank_usage.h"
#include "trireme/telemetry/sink.h"
#include "trireme/train/report/loading_summary.h"
#include "trireme/train/run/run.h"
#include "trireme/train/run/run_folder.h"
#include "trireme/train/step/evaluate.h"
#include "trireme/train/step/step.h"
#include "trireme/train/step/step_reports.h"

namespace trireme::train {

/// Seconds of a span of steps, and the waiting time of this rank in it.
struct StepTimes {
  double steps_s = 0;
  double data_wait_s = 0;
  double comm_wait_s = 0;
  double forward_s = 0, backward_s = 0, update_s = 0;  ///< of this rank's actions, without waiting for others
  double read_ahead = 0;    ///< the shares of the read-ahead that steps found, added up
  std::int64_t looked = 0;  ///< steps that are in it: all but the first
  std::int64_t read_bytes = 0, cache_hits = 0, cache_misses = 0;  ///< by threads that load data
  std::int64_t sent_bytes = 0;            ///< of gradients and gathered weights, by this rank
  std::int64_t sent_to_sites_bytes = 0;   ///< by this rank
  std::int64_t sent_to_stages_bytes = 0;  ///< by this rank
  std::int64_t steps = 0;
  std::int64_t samples = 0;
};
/// Of a later span and an earlier one that it contains: the rest of the later one.
StepTimes operator-(const StepTimes& a, const StepTimes& b);
/// Sets all totals but those of steps and samples.
void take_totals(StepTimes& times, const data::LoadingReport& loading, const StepCounters& counters,
                 const telemetry::Usage& usage);

/// The first part of a run's record.
struct RunOutline {
  std::string model, data;  ///< their names
  int world_size = 1;
  std::string config;           ///< content of config.toml
  std::int64_t first_step = 0;  ///< done before; 0: a fresh run
  std::int64_t total_steps = 0;
  std::optional<comm::ChosenNetwork> network = {};  ///< between hosts, where it was chosen
  std::filesystem::path earlier = {};  ///< folder of an earlier run of the name; empty: there was none
};

/// Of the ranks on this host, by PCI bus id.
std::vector<std::string> gpus_of_host(const comm::Context& context);

class RunRecorder {
 public:
  /// Opens the run's files after the first step, in an existing folder. Steps record the readings of GPUs
  /// with these PCI bus ids. Throws DataError.
  RunRecorder(const RunConfig& config, std::vector<std::string> gpus, const RunOutline& outline);
  ~RunRecorder();

  /// A line for people, on the console and in console.log.
  void note(const std::string& line);
  /// A step's report, with the times of the steps since the last one and the ranks that waited for data.
  void step(const StepReport& report, const StepTimes& since_last, const MostWaiting& most_waiting);
  /// Fields are named after the data: "test_accuracy", "validation_loss".
  void evaluation(std::int64_t step, const Evaluation& evaluation, const std::string& held_out);
  /// Of train.adapt: an event "adapt", and a note.
  void decision(const Decision& decision);
  void summary(const RunResult& result);

 private:
  void write(const telemetry::Record& record);
  void notice_lost_output();
  /// report.html: a run does not fail for it.
  void write_report();

  const RunConfig& config_;
  const RunFolder folder_;
  const std::optional<comm::ChosenNetwork> network_;
  const double started_s_;
  telemetry::AppendStream log_;  ///< console.log: all messages, for any listener
  std::vector<std::unique_ptr<telemetry::Sink>> sinks_;
  telemetry::DeviceGauge gauge_;
  bool stdout_lost_ = false;
};

}  // namespace trireme::train
