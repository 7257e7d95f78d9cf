#include "trireme/train/run/run.h"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/host.h"
#include "trireme/base/run_main.h"
#include "trireme/base/text.h"
#include "trireme/base/unix_time.h"
#include "trireme/checkpoint/background_saver.h"
#include "trireme/checkpoint/consolidate.h"
#include "trireme/checkpoint/shared_folder.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/comm/chosen_network.h"
#include "trireme/comm/elastic.h"
#include "trireme/comm/on_every_rank.h"
#include "trireme/comm/text_difference.h"
#include "trireme/data/dataset.h"
#include "trireme/telemetry/goodput.h"
#include "trireme/telemetry/rank_usage.h"
#include "trireme/telemetry/run_end.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/planner/planned_keys.h"
#include "trireme/train/report/run_recorder.h"
#include "trireme/train/report/run_trace.h"
#include "trireme/train/run/epoch_loss.h"
#include "trireme/train/run/internal/earlier_end.h"
#include "trireme/train/run/internal/held_run.h"
#include "trireme/train/run/internal/on_main.h"
#include "trireme/train/run/internal/planned_run.h"
#include "trireme/train/run/internal/run_start.h"
#include "trireme/train/run/internal/stage_cuts.h"
#include "trireme/train/run/recovery.h"
#include "trireme/train/run/run_folder.h"
#include "trireme/train/run/save_interval.h"
#include "trireme/train/step/internal/check.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

constexpr std::int64_t kWarmUpSteps = 2;

using Destination = checkpoint::BackgroundSaver::Destination;
using Destinations = std::vector<Destination>;

/// One run on one rank.
class Run {
 public:
  /// Rank 0 passes `lock`. `config` is that before the plan was chosen.
  Run(const RunConfig& config, const ChosenPlan& chosen, ResumeMode resume_mode, comm::Context& context,
      const data::DataSource& data, const RunPlan& plan, RunLock* lock)
      : context_(context),
        plan_(plan),
        resume_mode_(resume_mode),
        given_(config),
        chosen_(chosen),
        trainer_(with_saved_cuts(chosen_.plan, context, resume_mode_), context, data, plan.model,
                 plan.objective),
        config_(trainer_.plan().config()),
        folder_{config_.run_folder()},
        held_out_(data.held_out),
        has_second_split_(data.test != nullptr),
        data_name_(data.name),
        measured_cuts_(chosen_.plan.measures_cuts()),
        sees_folder_(checkpoint::ranks_that_see(context.world(), folder_.lock())) {
    restore();
    // Restored state may differ in size from this machine's measurements: kernel choices are texts.
    shares_.emplace(context.world(), state_to_save(trainer_, progress_), sees_folder_);
    saved_step_ = trainer_.steps_done();
    interval_.emplace(config_.checkpoint, saved_step_);
    earlier_end_ = earlier_end_of(trainer_, context, folder_);
    if (earlier_end_) return;
    if (is_elastic()) held_.emplace(*plan.memory, trainer_, progress_, context);
    on_main(context, [&] { open_folder(*lock); });
  }

  /// The result of a run in the folder that is complete already.
  const std::optional<RunResult>& earlier_end() const { return earlier_end_; }

  void train() {
    if (config_.checkpoint.asynchronous) save_in_background();
    if (plan_.callbacks.on_start) plan_.callbacks.on_start(trainer_);
    if (held_) held_->before_first_step();
    meter_.begin_steps();
    while (!ended()) {
      if (held_) held_->before_step();
      step(asked_to_stop());
      if (held_) held_->after_step();
      if (has_second_split_ && trainer_.step_schedule().evaluates(trainer_.steps_done())) evaluate();
      if (ended()) break;  // finish() does everything that is due then
      if (const Destinations due = destinations_due(Moment::kOnTheWay); !due.empty()) save(due);
      if (interval_->chooses(trainer_.steps_done())) choose_interval();
      if (saver_) saver_->check();
    }
    while (!trainer_.drained()) step(/*stop_signal=*/0);
    take_all();
    if (stop_signal_ == kNextWorld && !trainer_.finished() && !stopped_) leave_world();
  }

  RunResult finish();
  /// Records the failure that ended the run on this rank, if possible.
  void tell_failure(const Failure& failure) noexcept;
  /// For the next world of an elastic job.
  void keep_state() noexcept {
    if (held_) held_->keep_own();
  }
  const Trainer& trainer() const { return trainer_; }

 private:
  enum class Moment { kOnTheWay, kAtTheEnd };

  bool is_elastic() const { return plan_.memory != nullptr && !context_.environment().member.empty(); }
  void restore();
  void open_folder(RunLock& lock);
  void save_in_background();
  double stalled_s() const { return saver_ ? saver_->stalled_s() : 0; }
  double end_background_saves();
  double mean_step_s() const {
    const StepTimes rest = times_ - warm_up_;
    return warm_up_.steps == 0 || rest.steps == 0 ? 0 : rest.steps_s / static_cast<double>(rest.steps);
  }
  int asked_to_stop() const {
    const int signal = plan_.stop == nullptr ? 0 : plan_.stop->signal();
    return signal == 0 && held_ && comm::next_world_is_asked(context_) ? kNextWorld : signal;
  }
  [[noreturn]] void leave_world();
  bool ended() const { return trainer_.finished() || stop_signal_ != 0 || stopped_; }
  void step(int stop_signal);
  void take(const std::optional<StepReport>& report);
  void take_all() {
    while (const std::optional<StepReport> report = trainer_.last_report()) take(report);
  }
  void evaluate();
  bool runs_out_of_patience();  ///< counts the current evaluation
  Destinations destinations_due(Moment moment);
  bool newest_is_due(Moment moment);
  void choose_interval();
  /// At least 2 during the run: no later step has proven the newest yet.
  Destination newest() const {
    return {folder_.checkpoints(), static_cast<int>(std::max<std::int64_t>(config_.checkpoint.keep, 2))};
  }
  void save(const Destinations& destinations);
  void save_now(const std::optional<checkpoint::CheckpointPart>& part, const Destinations& destinations);
  void wait_for_parts();
  std::string save_weights();
  std::string saving() const { return "saving a checkpoint to " + folder_.root.string(); }
  std::string model_name() const { return plan_.model ? plan_.model->name() : config_.model.name; }

  comm::Context& context_;
  const RunPlan& plan_;
  const ResumeMode resume_mode_;
  const RunConfig& given_;  ///< before the plan was chosen
  const ChosenPlan& chosen_;
  Trainer trainer_;
  const RunConfig& config_;  ///< includes the cuts that the trainer has measured
  const RunFolder folder_;
  const std::string held_out_;
  const bool has_second_split_;  ///< without one, nothing is evaluated
  const std::string data_name_;
  const bool measured_cuts_;  ///< now, or before the checkpoint that is resumed
  Progress progress_;
  const std::vector<bool> sees_folder_;               ///< by rank
  std::optional<checkpoint::SaveShares> shares_;      ///< each rank's share of a save
  std::optional<HeldRun> held_;                       ///< in an elastic job
  std::optional<RunRecorder> recorder_;               ///< on rank 0
  telemetry::GoodputMeter meter_;                     ///< open on rank 0
  std::optional<checkpoint::BackgroundSaver> saver_;  ///< with asynchronous saves, until the run ends
  std::optional<SaveInterval> interval_;              ///< with checkpoint.interval = "auto"
  StepTimes times_, times_before_;                    ///< of the whole run; at the last line of metrics
  std::vector<DataWait> waits_before_;                ///< at the last line of metrics
  StepTimes warm_up_;                                 ///< during allocation of memory and connections
  std::deque<StepTimes> ended_;                       ///< times of steps whose reports are pending
  std::optional<Evaluation> evaluation_;
  std::int64_t evaluated_step_ = -1, saved_step_ = -1;  ///< saved_step_: as the newest checkpoint
  double saving_s_ = 0;                                 ///< by the training thread
  bool postponed_ = false;                              ///< a save, because of skipped steps
  int stop_signal_ = 0;
  bool stopped_ = false;  ///< by a callback
  std::optional<RunResult> earlier_end_;
  const double started_s_ = now_s();
};

void Run::restore() {
  const Resumable run{trainer_, progress_, sees_folder_};
  if (is_elastic() && context_.environment().restart_count > 0 &&
      resume_from_memory(run, context_, plan_.memory->states()))
    return;
  resume(run, context_, resume_mode_);
}

void Run::open_folder(RunLock& lock) {
  const std::string& start = context_.environment().start_id;
  const std::int64_t first_step = trainer_.steps_done();
  const telemetry::OwnWork work(context_.status(), "preparing the folder " + folder_.root.string());
  std::optional<telemetry::GoodputRecord> goodput;  // of an earlier part of a run that continues or restarts
  if (first_step > 0 || is_restart(context_, lock)) goodput = earlier_goodput(folder_, context_.log());
  std::filesystem::path earlier;
  first_step == 0 ? static_cast<void>(earlier = lock.start_fresh(start)) : lock.assign_to(start);
  recorder_.emplace(config_, gpus_of_host(context_),
                    RunOutline{.model = model_name(),
                               .data = data_name_,
                               .world_size = context_.world_size(),
                               .config = describe(chosen_.told.empty() ? config_ : given_),
                               .first_step = first_step,
                               .total_steps = trainer_.total_steps(),
                               .network = comm::chosen_network(context_),
                               .earlier = earlier});
  const double began_unix_s =
      plan_.began_unix_s > 0 ? plan_.began_unix_s : unix_now_s() - (now_s() - started_s_);
  meter_.open(folder_.goodput(), goodput, first_step, began_unix_s, context_.log());
  if (!chosen_.told.empty()) write_plan(chosen_, folder_.plan(), *recorder_);
  if (measured_cuts_) recorder_->note("pipeline: " + cuts_in_words(trainer_));
}

void Run::save_in_background() {
  saver_.emplace(context_.trace());
  trainer_.before_changes([this] {
    if (!saver_) return;
    const telemetry::OwnWork copying(context_.status(), "copying what a checkpoint saves");
    saver_->wait_until_copied();
  });
}

void Run::step(int stop_signal) {
  const double begin_s = now_s(), stalled_before_s = stalled_s(), waited_before_s = times_.data_wait_s;
  const std::optional<StepReport> of_older_step = trainer_.step(stop_signal);
  times_.steps_s += now_s() - begin_s;
  times_.steps += 1;
  take_totals(times_, trainer_.loading(), trainer_.counters(), context_.status().usage().read());
  meter_.step(times_.data_wait_s - waited_before_s, stalled_s() - stalled_before_s);
  if (times_.steps == kWarmUpSteps) warm_up_ = times_;
  ended_.push_back(times_);
  take(of_older_step);
}

/// In an elastic job: the next world continues after this step.
void Run::leave_world() {
  held_->hand_over(/*world_ends=*/true);  // first, as a host that leaves must not wait for a slow disk
  if (const Destinations due = destinations_due(Moment::kOnTheWay); !due.empty()) save(due);
  end_background_saves();
  throw comm::WorldChange();
}

void Run::take(const std::optional<StepReport>& report) {
  if (!report) return;
  StepTimes at = ended_.front();  // times of the report's step
  ended_.pop_front();
  times_.samples += report->samples;
  at.samples = times_.samples;
  if (!report->skipped) {
    const auto epoch = static_cast<std::int64_t>(trainer_.step_schedule().batch(report->step - 1).epoch);
    progress_.epoch_loss.add(epoch, report->loss, report->count);
  }
  if (stop_signal_ == 0) stop_signal_ = report->stop_signal;
  if (plan_.callbacks.on_step) plan_.callbacks.on_step(*report);
  if (!recorder_) return;
  for (const Decision& decision : report->decisions) recorder_->decision(decision);
  if (!trainer_.step_schedule().logs(report->step)) return;
  const telemetry::OwnWork work(context_.status(), "writing metrics to " + folder_.root.string());
  const StepTimes span = at - times_before_;
  recorder_->step(*report, span, most_waiting(report->data_waits, waits_before_, span.steps_s));
  meter_.write(trainer_.steps_done());
  times_before_ = at;
  waits_before_ = report->data_waits;
}

void Run::evaluate() {
  take_all();
  evaluation_ = trainer_.evaluate();
  evaluated_step_ = trainer_.steps_done();
  if (recorder_) {
    const telemetry::OwnWork work(context_.status(), "writing metrics to " + folder_.root.string());
    recorder_->evaluation(trainer_.steps_done(), *evaluation_, held_out_);
  }
  meter_.lap(telemetry::Phase::kEvaluation);
  const auto& told = plan_.callbacks.on_evaluation;
  stopped_ = runs_out_of_patience();
  if (told && told(evaluated_step_, *evaluation_) == RunControl::kStop) stopped_ = true;
}

bool Run::runs_out_of_patience() {
  const EvalOptions& bears = config_.eval;
  if (bears.patience > 0) progress_.patience.take(evaluation_->metric(bears.patience_metric).score());
  if (bears.patience == 0 || progress_.patience.since < bears.patience) return false;
  if (recorder_)
    context_.log().info("step ", evaluated_step_, ": the run ends; ", bears.patience,
                        " evaluations in a row were no better in ", bears.patience_metric);
  return true;
}

/// Postpones a save while steps are skipped: the last update may have made the weights useless.
bool Run::newest_is_due(Moment moment) {
  if (saved_step_ == trainer_.steps_done()) return false;
  if (moment == Moment::kAtTheEnd) return true;
  const std::int64_t step = trainer_.steps_done();
  const bool due = postponed_ || trainer_.step_schedule().saves(step) || interval_->saves(step);
  postponed_ = due && trainer_.skipped_in_a_row() > 0;
  return due && !postponed_;
}

/// Uses the measurements of rank 0 in this process.
void Run::choose_interval() {
  const FailureRate rate = failure_rate_of(config_.checkpoint, meter_.record());
  const SaveCosts costs = {.save_s = meter_.saving_of_process_s() / interval_->num_saves(),
                           .step_s = mean_step_s(),
                           .between_failures_s = rate.between_s};
  const std::string mine = recorder_ ? text(steps_between_saves(costs)) : "";
  const std::int64_t apart = std::stoll(context_.world().all_gather_text(mine).front());
  const bool is_news = interval_->choose(trainer_.steps_done(), apart);
  if (recorder_ && is_news) recorder_->note(describe(apart, costs, rate));
}

/// Destinations of the state after the last step: the newest, the best so far, or none.
Destinations Run::destinations_due(Moment moment) {
  Destinations due;
  if (newest_is_due(moment)) {
    saved_step_ = trainer_.steps_done();
    interval_->saved(saved_step_);
    due.push_back(newest());
  }
  const std::string& best = config_.checkpoint.best;
  if (best != "none" && evaluated_step_ == trainer_.steps_done()) {
    const double score = evaluation_->metric(best).score();
    if (score > progress_.best_score) {
      progress_.best_score = score;
      due.push_back({folder_.best(), /*keep=*/1});
    }
  }
  return due;
}

/// Completes the report of the last step and checks the weights first, so that a diverged state is never
/// saved.
void Run::save(const Destinations& destinations) {
  take_all();
  wait_for_parts();
  trainer_.complete_state();
  check_finite(trainer_, context_);
  context_.status().set_action(text("step ", trainer_.steps_done(), ": saving a checkpoint"));
  context_.status().usage().enter(telemetry::Activity::kCheckpoint);
  const telemetry::TraceScope span(telemetry::main_of(context_.trace()), "checkpoint", "checkpoint",
                                   {"step", trainer_.steps_done()});
  std::optional<checkpoint::CheckpointPart> part = snapshot_of(trainer_, *shares_, progress_, config_);
  const telemetry::OwnWork work(context_.status(), saving());
  if (!saver_) save_now(part, destinations);
  if (saver_ && part) saver_->save(std::move(*part), destinations);
  meter_.saved(trainer_.steps_done());
  meter_.write(trainer_.steps_done());
}

void Run::save_now(const std::optional<checkpoint::CheckpointPart>& part, const Destinations& destinations) {
  const double begin_s = now_s();
  for (const auto& [folder, keep] : destinations)
    checkpoint::save_together(context_.world(), part, folder, keep);
  saving_s_ += now_s() - begin_s;
}

/// Waits until every rank's part of the current save is on disk. A dead rank is detected here, as no other
/// operation waits for its part.
void Run::wait_for_parts() {
  if (!saver_) return;
  const telemetry::OwnWork work(context_.status(), saving());
  comm::on_every_rank(context_.world(), [&] { saver_->wait_until_written(); });
}

/// Saves the weights of evaluations (averages, if there are any). Returns their digest on rank 0.
std::string Run::save_weights() {
  trainer_.synchronize();
  const telemetry::OwnWork work(context_.status(), "writing the weights to " + folder_.root.string());
  const auto weights = trainer_.evaluated_weights();
  return checkpoint::save_from_ranks(context_.world(), shards_of(trainer_.model_state()), folder_.model(),
                                     {{"model", model_name()}});
}

/// Training has ended, so the last save needs neither a copy of the state nor a thread. Returns the seconds
/// for which saves have stalled training.
double Run::end_background_saves() {
  if (!saver_) return 0;
  wait_for_parts();
  const telemetry::OwnWork work(context_.status(), saving());
  comm::on_every_rank(context_.world(), [&] { saver_->wait(); });
  const double stalled_s = saver_->stalled_s();
  saver_.reset();
  return stalled_s;
}

RunResult Run::finish() {
  const bool interrupted = !trainer_.finished() && !stopped_;
  if (has_second_split_ && !interrupted) {
    if (evaluated_step_ != trainer_.steps_done()) evaluate();
    check_outcome(*evaluation_, trainer_.steps_done());
  }
  const double background_s = end_background_saves();
  if (const Destinations due = destinations_due(Moment::kAtTheEnd); !due.empty()) save(due);
  if (recorder_ && !interrupted)
    checkpoint::keep_newest(folder_.checkpoints(), static_cast<int>(config_.checkpoint.keep));
  at::Tensor rss = at::scalar_tensor(static_cast<double>(peak_rss_bytes()), at::kDouble).reshape({1});
  context_.world().all_reduce(rss, comm::ReduceOp::kMax);
  const MemoryReport memory = largest(context_, trainer_.memory());
  const LoadingSummary loading = gather(context_, trainer_.loading(), times_.steps_s);
  const std::string digest = save_weights();
  meter_.lap(telemetry::Phase::kSaving);
  RunResult result{
      .status = interrupted ? "interrupted"
                : stopped_  ? "stopped"
                            : "completed",
      .exit_code = interrupted ? 128 + stop_signal_ : 0,
      .folder = folder_.root,
      .world_size = context_.world_size(),
      .steps = trainer_.steps_done(),
      .evaluation = evaluation_,
      .held_out = held_out_,
      .train_loss = progress_.epoch_loss.mean(),
      .samples_per_s = static_cast<double>(times_.samples) / std::max(times_.steps_s, 1e-9),
      .steps_s = times_.steps_s,
      .step_s = mean_step_s(),
      .sent_to_sites_bytes_of_step = times_.sent_to_sites_bytes / std::max<std::int64_t>(times_.steps, 1),
      .sent_to_stages_bytes_of_step = times_.sent_to_stages_bytes / std::max<std::int64_t>(times_.steps, 1),
      .sent_bytes_of_step = times_.sent_bytes / std::max<std::int64_t>(times_.steps, 1),
      .checkpoint_stall_s = config_.checkpoint.asynchronous ? background_s : saving_s_,
      .wall_s = now_s() - started_s_,
      .goodput = meter_.record(),
      .peak_rss_bytes = static_cast<std::uint64_t>(rss.item<double>()),
      .memory = memory,
      .loading = loading,
      .weights_xxh3 = context_.world().all_gather_text(digest).front()};
  if (warm_up_.steps > 0)
    result.plan_review =
        review_run(chosen_, given_, context_, plan_, times_ - warm_up_, trainer_.memory().at_peak);
  trainer_.summarize(result);
  if (recorder_) {
    const telemetry::OwnWork work(context_.status(), "writing the results to " + folder_.root.string());
    recorder_->summary(result);
    meter_.end(trainer_.steps_done());
  }
  context_.world().barrier();  // no rank reports the end before the files exist
  return result;
}

void Run::tell_failure(const Failure& failure) noexcept {
  if (!sees_folder_[static_cast<std::size_t>(context_.rank())]) return;
  try {
    telemetry::write_failure(folder_.end(), failure, trainer_.steps_done());
    meter_.write(trainer_.steps_done());
  } catch (const std::exception&) {  // the failure has its own error message
  }
}

/// `open` is the plan of `config`, or that of before_planning() if the run chooses its plan.
RunResult carry_out(const RunConfig& config, const ParallelPlan& open, comm::Context& context,
                    const RunPlan& plan) {
  context.status().set_run(RunFolder{config.run_folder()}.real_path());
  const data::DataSource data = open_data_of(config, context, plan);
  check_data_of(open, data, plan.objective);
  if (context.rank() == 0) warn_of_data(config, data, context.log());
  const std::unique_ptr<RunLock> lock = lock_folder(config, context, plan.start);
  const ResumeMode resume_mode = resume_mode_of(plan, context, lock.get());
  const ChosenPlan chosen = choose_plan(config, open, context, data, plan, resume_mode);
  RunTrace trace(chosen.plan, context, plan.start);
  Run run(config, chosen, resume_mode, context, data, plan, lock.get());
  if (run.earlier_end()) {
    trace.discard();
    return *run.earlier_end();
  }
  try {
    run.train();
    RunResult result = run.finish();
    trace.finish(run.trainer());
    return result;
  } catch (...) {
    run.tell_failure(failure_of(std::current_exception()));
    run.keep_state();
    throw;
  }
}

}  // namespace

RunResult run_training(const RunConfig& config, comm::Context& context, const RunPlan& plan) {
  check_same_config(config, context, plan);
  const int ranks = context.world_size();
  const bool is_open = config.parallel.plan == "auto";
  return carry_out(config, resolve_plan(is_open ? before_planning(config, ranks) : config, ranks), context,
                   plan);
}

RunResult run_training(const ParallelPlan& layout, comm::Context& context, const RunPlan& plan) {
  check_same_config(layout.config(), context, plan);
  return carry_out(layout.config(), layout, context, plan);
}

}  // namespace trireme::train
