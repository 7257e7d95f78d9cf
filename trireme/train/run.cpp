#include "trireme/train/run.h"

#include <ATen/ops/scalar_tensor.h>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/base/text.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/data/dataset.h"
#include "trireme/train/epoch_loss.h"
#include "trireme/train/internal/check.h"
#include "trireme/train/model_state.h"
#include "trireme/train/recovery.h"
#include "trireme/train/run_recorder.h"
#include "trireme/train/trainer.h"

namespace trireme::train {
namespace {

/// One run on one rank.
class Run {
 public:
  Run(const RunConfig& config, comm::Context& context, const data::DataSource& data, RunStart start)
      : config_(config),
        context_(context),
        folder_{config.run_folder()},
        held_out_(data.held_out),
        trainer_(config, context, data) {
    const bool restarted = context.environment().restart_count > 0;
    if (start == RunStart::kResume || restarted) {
      resume(trainer_, progress_, config, context, folder_.checkpoints(),
             restarted ? NoCheckpoint::kStartFresh : NoCheckpoint::kError);
    }
    if (context.is_main()) {
      recorder_.emplace(config, context.world_size(), trainer_.steps_done(), trainer_.total_steps());
    }
  }

  void train(const StopRequest* stop) {
    while (!trainer_.finished() && stop_signal_ == 0) {
      step(stop == nullptr ? 0 : stop->signal());
      if (is_due(config_.eval.every_steps, trainer_.steps_per_epoch())) evaluate();
      if (config_.checkpoint.every_steps > 0 && is_due(config_.checkpoint.every_steps, 0)) save_checkpoint();
    }
    take(trainer_.last_report(), times_);
  }

  RunResult finish();

 private:
  void step(int stop_signal);
  /// `at`: what had passed when the step of the report was over.
  void take(const std::optional<StepReport>& report, StepTimes at);
  void evaluate();
  void keep_best();
  void save_checkpoint();
  /// True every `every` steps, or every `otherwise` steps where `every` is 0.
  bool is_due(std::int64_t every, std::int64_t otherwise) const {
    return trainer_.steps_done() % (every > 0 ? every : otherwise) == 0;
  }

  const RunConfig& config_;
  comm::Context& context_;
  const RunFolder folder_;
  const std::string held_out_;
  Trainer trainer_;
  std::optional<RunRecorder> recorder_;  ///< on rank 0
  StepTimes times_, times_before_;       ///< of the whole run, and at the last line of metrics
  Progress progress_;
  std::optional<Evaluation> evaluation_;
  std::int64_t evaluated_step_ = -1, saved_step_ = -1;
  int stop_signal_ = 0;
  const double started_s_ = now_s();
};

StepTimes operator-(const StepTimes& a, const StepTimes& b) {
  return {.steps_s = a.steps_s - b.steps_s,
          .data_wait_s = a.data_wait_s - b.data_wait_s,
          .comm_wait_s = a.comm_wait_s - b.comm_wait_s,
          .steps = a.steps - b.steps,
          .samples = a.samples - b.samples};
}

void Run::step(int stop_signal) {
  const StepTimes before = times_;
  const double begin_s = now_s();
  const std::optional<StepReport> of_step_before = trainer_.step(stop_signal);
  times_.steps_s += now_s() - begin_s;
  times_.steps += 1;
  times_.data_wait_s = trainer_.data_wait_s();
  times_.comm_wait_s = trainer_.comm_wait_s();
  take(of_step_before, before);
}

void Run::take(const std::optional<StepReport>& report, StepTimes at) {
  if (!report) return;
  times_.samples += report->samples;
  at.samples = times_.samples;
  if (!report->skipped) {
    progress_.epoch_loss.add((report->step - 1) / trainer_.steps_per_epoch(), report->loss, report->samples);
  }
  stop_signal_ = report->stop_signal;
  if (!recorder_ ||
      (report->step % config_.run.log_every_steps != 0 && report->step != trainer_.total_steps())) {
    return;
  }
  recorder_->step(*report, at - times_before_);
  times_before_ = at;
}

void Run::evaluate() {
  take(trainer_.last_report(), times_);
  evaluation_ = trainer_.evaluate();
  evaluated_step_ = trainer_.steps_done();
  if (recorder_) recorder_->evaluation(trainer_.steps_done(), *evaluation_, held_out_);
  keep_best();
}

/// The state behind the best evaluation so far, beside the newest ones.
void Run::keep_best() {
  if (config_.checkpoint.best == "none") return;
  const double score = config_.checkpoint.best == "loss" ? -evaluation_->loss : evaluation_->accuracy();
  if (!(score > progress_.best_score)) return;
  progress_.best_score = score;
  if (recorder_) save(trainer_, progress_, config_, folder_.best(), /*keep=*/1);
}

/// The report of the last step comes first: nothing that has diverged is saved.
void Run::save_checkpoint() {
  take(trainer_.last_report(), times_);
  saved_step_ = trainer_.steps_done();
  if (!recorder_) return;
  context_.status().set_action(text("step ", saved_step_, ": writing a checkpoint"));
  save(trainer_, progress_, config_, folder_.checkpoints(), config_.checkpoint.keep);
}

RunResult Run::finish() {
  const bool interrupted = !trainer_.finished();
  if (interrupted && saved_step_ != trainer_.steps_done()) save_checkpoint();
  if (!interrupted && evaluated_step_ != trainer_.steps_done()) evaluate();
  at::Tensor rss = at::scalar_tensor(static_cast<double>(peak_rss_bytes()), at::kDouble).reshape({1});
  context_.world().all_reduce(rss, comm::ReduceOp::kMax);
  const auto averages = trainer_.use_averages();
  const checkpoint::TensorMap weights = state_of(trainer_.model());
  RunResult result{.status = interrupted ? "interrupted" : "completed",
                   .exit_code = interrupted ? 128 + stop_signal_ : 0,
                   .folder = folder_.root,
                   .world_size = context_.world_size(),
                   .steps = trainer_.steps_done(),
                   .evaluation = evaluation_,
                   .held_out = held_out_,
                   .train_loss = progress_.epoch_loss.mean(),
                   .samples_per_s = static_cast<double>(times_.samples) / std::max(times_.steps_s, 1e-9),
                   .wall_s = now_s() - started_s_,
                   .peak_rss_bytes = static_cast<std::uint64_t>(rss.item<double>()),
                   .weights_xxh3 = checkpoint::xxh3_of(weights)};
  if (recorder_) {
    checkpoint::save_safetensors(folder_.model(), weights, {{"model", config_.model.name}});
    recorder_->summary(result);
  }
  context_.world().barrier();  // no rank reports the end before the files are there
  return result;
}

/// Every rank has read the same configuration.
void check_same_config(const RunConfig& config, comm::Context& context) {
  const std::vector<std::string> all = context.world().all_gather_text(describe(config));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const std::vector<std::string> first = split(all[0], '\n'), other = split(all[rank], '\n');
    for (std::size_t i = 0; i < std::min(first.size(), other.size()); ++i) {
      require(first[i] == other[i], "ranks have different configurations: rank 0 '", first[i], "', rank ",
              rank, " '", other[i], "'");
    }
  }
}

}  // namespace

RunResult run_training(const RunConfig& config, comm::Context& context, RunStart start,
                       const StopRequest* stop) {
  check_same_config(config, context);
  const data::DataSource data =
      data::open_data(config.data, static_cast<std::uint64_t>(config.run.seed), context.log());
  check_run_config(config, context.world_size(), data);
  Run run(config, context, data, start);
  run.train(stop);
  return run.finish();
}

}  // namespace trireme::train
