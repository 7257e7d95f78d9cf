#include "trireme/train/report/run_recorder.h"

#include <algorithm>
#include <cmath>
#include <iostream>

#include "trireme/base/clock.h"
#include "trireme/base/files.h"
#include "trireme/base/num_fields.h"
#include "trireme/comm/device.h"
#include "trireme/telemetry/console_sink.h"
#include "trireme/telemetry/jsonl_sink.h"
#include "trireme/telemetry/report.h"
#include "trireme/telemetry/run_end.h"
#include "trireme/telemetry/run_summary.h"
#include "trireme/telemetry/tensorboard_sink.h"
#include "trireme/train/config/batch_ramp.h"
#include "trireme/train/config/internal/config_keys.h"
#include "trireme/train/parts/internal/compression.h"
#include "trireme/train/parts/noise_scale.h"

namespace trireme::train {
namespace {

/// ", test accuracy 0.9112". Without an accuracy that counts each sample once (text has none), ", validation
/// loss 1.8744".
std::string outcome_of(const Evaluation& evaluation, const std::string& held_out) {
  MetricValue told = evaluation.metric("loss");
  for (const MetricValue& metric : evaluation.metrics) {
    const bool one_each = metric.count == static_cast<double>(evaluation.samples);
    if (metric.name == "accuracy" && one_each) told = metric;
  }
  return text(", ", held_out, " ", told.name, " ", std::round(told.value * 1e4) / 1e4);
}

/// "test_accuracy", then the other metrics, then "test_loss".
void add_measures(telemetry::Record& record, const Evaluation& evaluation, const std::string& held_out) {
  for (const MetricValue& metric : evaluation.metrics)
    record.fields.emplace_back(held_out + "_" + metric.name, metric.value);
  record.fields.emplace_back(held_out + "_loss", evaluation.loss);
}

/// "memory_peak_weights_bytes", "memory_device_peak_weights_bytes", for values that are not 0.
void add_memory(telemetry::Record& record, const MemoryReport& memory) {
  const auto add = [&](const std::string& column, const MemoryUse& use) {
    for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind) {
      if (use.bytes[kind] == 0) continue;
      record.fields.emplace_back(
          text("memory_", column, "_", name_of(static_cast<MemoryKind>(kind)), "_bytes"), use.bytes[kind]);
    }
  };
  add("peak", memory.at_peak);
  add("update", memory.at_update);
  add("formula", memory.formula);
  add("device_peak", memory.device_at_peak);
  add("device_update", memory.device_at_update);
  if (memory.offloaded_bytes > 0) record.fields.emplace_back("offloaded_bytes", memory.offloaded_bytes);
}

/// "loading_wait_rank_1": each rank's share of the time in steps. "loading_samples_rank_1": its samples of a
/// batch, if not equal. "loading_decode": share of the busy time of all threads. "loading_read_bytes", ...:
/// sums over all ranks, if not 0.
void add_loading(telemetry::Record& record, const LoadingSummary& loading) {
  const auto add = [&](const std::string& name, telemetry::FieldValue value) {
    record.fields.emplace_back("loading_" + name, std::move(value));
  };
  for (std::size_t rank = 0; rank < loading.wait_shares.size(); ++rank) {
    add(text("wait_rank_", rank), loading.wait_shares[rank]);
    if (!loading.stages[rank].empty())
      add(text("slowest_stage_rank_", rank), std::string(loading.stages[rank]));
  }
  // Equal parts differ by one sample at most.
  const auto [fewest, most] = std::ranges::minmax(loading.samples);
  for (std::size_t rank = 0; most > fewest + 1 && rank < loading.samples.size(); ++rank)
    add(text("samples_rank_", rank), loading.samples[rank]);
  for (std::size_t stage = 0; stage < loading.stage_shares.size(); ++stage) {
    if (loading.stage_shares[stage] > 0)
      add(std::string(data::name_of(static_cast<data::Stage>(stage))), loading.stage_shares[stage]);
  }
  add("fill", loading.fill);
  add("workers", std::int64_t{loading.max_workers});
  const std::pair<const char*, std::int64_t> counts[] = {{"read_bytes", loading.bytes_read},
                                                         {"cache_hits", loading.cache_hits},
                                                         {"cache_misses", loading.cache_misses},
                                                         {"retries", loading.retries},
                                                         {"skipped", loading.skipped}};
  for (const auto& [name, count] : counts) {
    if (count > 0) add(name, count);
  }
}

/// "adapt_kept": 1, ..., and "adapt_1": the first decision, as on the console.
void add_decisions(telemetry::Record& record, const std::vector<Decision>& decisions) {
  constexpr std::size_t kMost = 100;  // all are in metrics.jsonl
  for (const Verdict verdict :
       {Verdict::kTried, Verdict::kKept, Verdict::kReverted, Verdict::kSet, Verdict::kSkipped})
    record.fields.emplace_back(text("adapt_", name_of(verdict)),
                               std::ranges::count(decisions, verdict, &Decision::verdict));
  for (std::size_t i = 0; i < std::min(decisions.size(), kMost); ++i)
    record.fields.emplace_back(text("adapt_", i + 1),
                               text("step ", decisions[i].step, ", ", describe(decisions[i])));
}

/// "planned_forward_s" and "measured_forward_s", ..., "planned_weights_bytes" and "measured_weights_bytes".
void add_review(telemetry::Record& record, const PlanReview& review) {
  const auto add = [&](const ReviewedTerm& term, const char* unit) {
    std::string name = term.name;
    std::ranges::replace(name, ' ', '_');
    record.fields.emplace_back(text("planned_", name, unit), term.predicted);
    record.fields.emplace_back(text("measured_", name, unit), term.measured);
  };
  for (const ReviewedTerm& term : review.times) add(term, "_s");
  for (const ReviewedTerm& term : review.memory) add(term, "_bytes");
}

std::string rounded_ms(double seconds) { return text(std::round(seconds * 1e5) / 1e2, " ms"); }

std::string offloaded_in_words(const MemoryReport& memory) {
  if (memory.offloaded_bytes == 0) return "";
  return text("; elsewhere ", human_bytes(static_cast<std::uint64_t>(memory.offloaded_bytes)));
}

}  // namespace

void take_totals(StepTimes& times, const data::LoadingReport& loading, const StepCounters& counters,
                 const telemetry::Usage& usage) {
  times.data_wait_s = loading.waited_s;
  times.looked = std::max<std::int64_t>(loading.batches - 1, 0);
  times.read_ahead = loading.fill * static_cast<double>(times.looked);
  times.read_bytes = loading.counts.bytes_read;
  times.cache_hits = loading.counts.cache_hits;
  times.cache_misses = loading.counts.cache_misses;
  times.comm_wait_s = counters.comm_wait_s;
  times.forward_s = usage.worked_s(telemetry::Activity::kForward);
  times.backward_s = usage.worked_s(telemetry::Activity::kBackward);
  times.update_s = usage.worked_s(telemetry::Activity::kUpdate);
  times.sent_bytes = counters.sent_bytes;
  times.sent_to_sites_bytes = counters.sent_to_sites_bytes;
  times.sent_to_stages_bytes = counters.sent_to_stages_bytes;
}

StepTimes operator-(const StepTimes& a, const StepTimes& b) {
  static_assert(num_fields<StepTimes>() == 16, "each field has its difference");
  return {.steps_s = a.steps_s - b.steps_s,
          .data_wait_s = a.data_wait_s - b.data_wait_s,
          .comm_wait_s = a.comm_wait_s - b.comm_wait_s,
          .forward_s = a.forward_s - b.forward_s,
          .backward_s = a.backward_s - b.backward_s,
          .update_s = a.update_s - b.update_s,
          .read_ahead = a.read_ahead - b.read_ahead,
          .looked = a.looked - b.looked,
          .read_bytes = a.read_bytes - b.read_bytes,
          .cache_hits = a.cache_hits - b.cache_hits,
          .cache_misses = a.cache_misses - b.cache_misses,
          .sent_bytes = a.sent_bytes - b.sent_bytes,
          .sent_to_sites_bytes = a.sent_to_sites_bytes - b.sent_to_sites_bytes,
          .sent_to_stages_bytes = a.sent_to_stages_bytes - b.sent_to_stages_bytes,
          .steps = a.steps - b.steps,
          .samples = a.samples - b.samples};
}

std::vector<std::string> gpus_of_host(const comm::Context& context) {
  return comm::pci_bus_ids_of_ranks(context.device().type(), context.local_world_size());
}

RunRecorder::RunRecorder(const RunConfig& config, std::vector<std::string> gpus, const RunOutline& outline)
    : config_(config),
      folder_{config.run_folder()},
      network_(outline.network),
      started_s_(now_s()),
      log_(folder_.console()),
      gauge_(std::move(gpus)) {
  sinks_.push_back(std::make_unique<telemetry::ConsoleSink>(
      std::cout, telemetry::ConsoleOptions{.style = telemetry::style_of_stdout(),
                                           .total_steps = outline.total_steps,
                                           .columns = telemetry::columns_of_stdout()}));
  sinks_.push_back(std::make_unique<telemetry::ConsoleSink>(
      log_, telemetry::ConsoleOptions{.total_steps = outline.total_steps}));
  if (!outline.earlier.empty()) note(text("the earlier run of this name is now ", outline.earlier.string()));
  if (outline.first_step > 0) {
    telemetry::drop_lines_after(folder_.metrics(), outline.first_step);
    telemetry::drop_events_after(folder_.tensorboard(), outline.first_step);
  }
  std::error_code not_there;
  std::filesystem::remove(folder_.end(), not_there);  // this run has not ended yet
  write_file_atomic(folder_.config(), outline.config);
  sinks_.push_back(std::make_unique<telemetry::JsonlSink>(folder_.metrics()));
  if (config.run.tensorboard) {
    sinks_.push_back(std::make_unique<telemetry::TensorboardSink>(folder_.tensorboard()));
  }
  note(text(outline.first_step == 0 ? "training " : "resuming ", outline.model, " on ", outline.data,
            ": steps ", outline.first_step + 1, " to ", outline.total_steps, ", global batch ",
            describe_batches(config.train), ", ", outline.world_size,
            outline.world_size == 1 ? " rank" : " ranks", ", into ", folder_.root.string()));
}

RunRecorder::~RunRecorder() = default;

void RunRecorder::note(const std::string& line) {
  for (std::size_t console = 0; console < 2; ++console) sinks_[console]->write({"note", {{"text", line}}});
  notice_lost_output();
}

/// The reader of standard output may have exited (`| head`). The run continues without it.
void RunRecorder::notice_lost_output() {
  if (std::cout || stdout_lost_) return;
  stdout_lost_ = true;
  const std::string words =
      text("standard output is closed; the run continues, and its output is in ", folder_.console().string());
  std::cerr << words << std::endl;
  note(words);
}

void RunRecorder::step(const StepReport& report, const StepTimes& since_last,
                       const MostWaiting& most_waiting) {
  const double steps_s = std::max(since_last.steps_s, 1e-9);
  telemetry::Record record{.event = "step",
                           .fields = {{"step", report.step},
                                      {"loss", report.loss},
                                      {"lr", report.lr},
                                      {"samples_per_s", static_cast<double>(since_last.samples) / steps_s}}};
  if (!config_.train.batch_ramp_sizes.empty()) record.fields.emplace_back("batch", report.full_batch);
  if (report.grad_norm) record.fields.emplace_back("grad_norm", *report.grad_norm);
  if (report.loss_scale) record.fields.emplace_back("loss_scale", *report.loss_scale);
  if (report.noise_scale && std::isfinite(*report.noise_scale))
    record.fields.emplace_back("noise_scale", *report.noise_scale);
  if (report.staleness) record.fields.emplace_back("staleness", std::int64_t{*report.staleness});
  if (report.weight_versions)
    record.fields.emplace_back("weight_versions", std::int64_t{*report.weight_versions});
  if (report.skipped) record.fields.emplace_back("skipped", std::int64_t{1});
  record.fields.emplace_back("data_wait", since_last.data_wait_s / steps_s);
  if (report.data_waits.size() > 1) {
    record.fields.emplace_back("data_wait_most", most_waiting.share);
    record.fields.emplace_back("data_wait_rank", std::int64_t{most_waiting.rank});
  }
  if (!most_waiting.stage.empty())
    record.fields.emplace_back("data_wait_stage", std::string(most_waiting.stage));
  if (since_last.looked > 0)
    record.fields.emplace_back("data_ahead", since_last.read_ahead / static_cast<double>(since_last.looked));
  if (since_last.read_bytes > 0)
    record.fields.emplace_back("data_bytes_per_s", static_cast<double>(since_last.read_bytes) / steps_s);
  if (const std::int64_t looks = since_last.cache_hits + since_last.cache_misses; looks > 0)
    record.fields.emplace_back("data_cache_hits",
                               static_cast<double>(since_last.cache_hits) / static_cast<double>(looks));
  record.fields.emplace_back("comm_wait", since_last.comm_wait_s / steps_s);
  const std::int64_t steps = std::max<std::int64_t>(since_last.steps, 1);
  if (since_last.sent_bytes > 0) record.fields.emplace_back("sent_bytes", since_last.sent_bytes / steps);
  if (since_last.sent_to_sites_bytes > 0)
    record.fields.emplace_back("sent_to_sites_bytes", since_last.sent_to_sites_bytes / steps);
  if (since_last.sent_to_stages_bytes > 0)
    record.fields.emplace_back("sent_to_stages_bytes", since_last.sent_to_stages_bytes / steps);
  record.fields.emplace_back("step_s", steps_s / static_cast<double>(steps));
  gauge_.add_to(record);
  write(record);
}

void RunRecorder::evaluation(std::int64_t step, const Evaluation& evaluation, const std::string& held_out) {
  telemetry::Record record{.event = "eval", .fields = {{"step", step}}};
  add_measures(record, evaluation, held_out);
  record.fields.emplace_back("samples", evaluation.samples);
  write(record);
}

void RunRecorder::decision(const Decision& decision) {
  telemetry::Record record{.event = "adapt",
                           .fields = {{"step", decision.step},
                                      {"from_step", decision.from_step},
                                      {"knob", decision.knob},
                                      {"verdict", std::string(name_of(decision.verdict))},
                                      {"from", decision.from},
                                      {"to", decision.to},
                                      {"reason", decision.reason}}};
  const auto add = [&](const char* name, double seconds) {
    if (seconds > 0) record.fields.emplace_back(name, seconds);
  };
  add("before_step_s", decision.before_s);
  add("after_step_s", decision.after_s);
  add("estimated_step_s", decision.estimated_s);
  write(record);
  note(describe(decision));
}

void RunRecorder::summary(const RunResult& result) {
  telemetry::Record record{.event = "end", .fields = {{"name", config_.run.name}, {"status", result.status}}};
  if (result.evaluation) add_measures(record, *result.evaluation, result.held_out);
  const std::vector<std::pair<std::string, telemetry::FieldValue>> rest = {
      {"train_loss", result.train_loss},
      {"samples_per_s", result.samples_per_s},
      {"world_size", std::int64_t{result.world_size}},
      {"steps", result.steps},
      {"checkpoint_stall_s", result.checkpoint_stall_s},
      {"wall_s", result.wall_s},
      {"peak_rss_bytes", static_cast<std::int64_t>(result.peak_rss_bytes)},
      {"weights_xxh3", result.weights_xxh3},
      {"config", config_.source}};
  record.fields.insert(record.fields.end(), rest.begin(), rest.end());
  telemetry::add_goodput(record, result.goodput);
  if (!config_.parallel.cuts.empty()) record.fields.emplace_back("cuts", to_toml(config_.parallel.cuts));
  if (network_) {
    record.fields.emplace_back("network", network_->name);
    record.fields.emplace_back("network_reason", network_->reason);
  }
  if (result.sent_bytes_of_step > 0)
    record.fields.emplace_back("sent_bytes_of_step", result.sent_bytes_of_step);
  if (result.sent_bytes_of_step > 0 && config_.parallel.compression != "none")
    record.fields.emplace_back("compression", compression_in_words(config_));
  if (result.sent_to_sites_bytes_of_step > 0)
    record.fields.emplace_back("sent_to_sites_bytes_of_step", result.sent_to_sites_bytes_of_step);
  if (result.sent_to_stages_bytes_of_step > 0)
    record.fields.emplace_back("sent_to_stages_bytes_of_step", result.sent_to_stages_bytes_of_step);
  const double planned_s = config_.parallel.planned_step_s;
  if (planned_s > 0) {
    record.fields.emplace_back("planned_step_s", planned_s);
    record.fields.emplace_back("step_s", result.step_s);
  }
  if (result.plan_review) add_review(record, *result.plan_review);
  if (result.noise && std::isfinite(result.noise->scale()))
    record.fields.emplace_back("largest_useful_batch", result.noise->scale());
  if (config_.train.adapt || grows_with_noise(config_.train)) add_decisions(record, result.decisions);
  add_memory(record, result.memory);
  add_loading(record, result.loading);
  telemetry::write_summary(folder_.summary(), record);
  telemetry::write_run_end(
      folder_.end(),
      {.status = result.status, .exit_code = result.exit_code, .message = {}, .steps = result.steps});
  write_report();
  if (result.noise) note(describe_noise(*result.noise, config_.train.global_batch));
  note("data: " + describe(result.loading));
  note(telemetry::describe(result.goodput));
  if (!result.found_by_reduction.empty()) note("gradients: " + result.found_by_reduction);
  if (const std::string memory = describe(result.memory.at_peak); !memory.empty())
    note(text("memory of rank ", result.memory.rank, " at its peak: ", memory,
              offloaded_in_words(result.memory)));
  if (result.plan_review)
    note("plan: " + describe(*result.plan_review));
  else if (planned_s > 0 && result.step_s > 0)
    note(text("a step took ", rounded_ms(result.step_s), "; the plan said ", rounded_ms(planned_s)));
  if (const std::string memory = describe(result.memory.device_at_peak); !memory.empty())
    note(text("memory of the device of rank ", result.memory.rank, " at its peak: ", memory));
  note(text(result.status, " after ", result.steps, " steps in ", human_duration(result.wall_s), ", ",
            std::llround(result.samples_per_s), " samples/s",
            result.evaluation ? outcome_of(*result.evaluation, result.held_out) : std::string(), "; see ",
            folder_.summary().string()));
}

void RunRecorder::write_report() {
  try {
    telemetry::write_report(folder_.root);
  } catch (const std::exception& error) {
    note(text("no page report.html: ", error.what()));
  }
}

void RunRecorder::write(const telemetry::Record& record) {
  telemetry::Record timed = record;
  timed.fields.emplace_back("time_s", now_s() - started_s_);
  for (const auto& sink : sinks_) sink->write(timed);
  notice_lost_output();
}

}  // namespace trireme::train
