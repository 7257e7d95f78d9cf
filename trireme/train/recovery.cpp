#include "trireme/train/recovery.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "trireme/base/error.h"
#include "trireme/train/internal/config_keys.h"
#include "trireme/train/internal/on_main.h"
#include "trireme/train/run_folder.h"

namespace trireme::train {
namespace {

std::string updates_in_words(const RunConfig& config) {
  if (config.parallel.pipeline == 1) return "one stage, which updates at the end of a step";
  return text("parallel.schedule = \"", config.parallel.schedule, "\", whose stages update ",
              updates_under_way(config) ? "while micro-batches are under way" : "at the end of a step");
}

/// What a saved configuration says of a key, or meant when there was no such key.
ConfigValue value_in_run(const RunConfig& saved, const ConfigKey& key) {
  const bool is_absent = saved.named && !saved.named->contains(key.name);
  return is_absent && key.before_it_was ? *key.before_it_was : key.get(saved);
}

constexpr const char* kProgress = "run/progress";
constexpr std::string_view kOptimizer = "optimizer/";
std::string of_optimizer(const std::string& name) { return std::string(kOptimizer) + name; }

at::Tensor pack(const Progress& progress) {
  const EpochLoss& loss = progress.epoch_loss;
  return at::tensor({static_cast<double>(loss.epoch), loss.count, loss.sum, progress.best_score},
                    at::kDouble);
}

Progress unpack(const at::Tensor& packed) {
  const auto* values = packed.data_ptr<double>();
  return {.epoch_loss = {.epoch = static_cast<std::int64_t>(values[0]), .count = values[1], .sum = values[2]},
          .best_score = values[3]};
}

/// What a checkpoint holds of whole_state().
checkpoint::TensorMap state_in(const checkpoint::TrainingCheckpoint& checkpoint) {
  checkpoint::TensorMap state = checkpoint.model;
  for (const auto& [name, tensor] : checkpoint.optimizer) state.emplace(of_optimizer(name), tensor);
  return state;
}

}  // namespace

void check_same_run(const RunConfig& config, const RunConfig& before, std::int64_t step) {
  const auto refuse = [&](const std::string& reason) {
    throw InvalidArgument(text("cannot resume run '", config.run.name, "' from step ", step, ": ", reason,
                               "; set it back, or start a fresh run"));
  };
  const auto of_kind = [&](OnResume kind, const auto& look) {
    for (const ConfigKey& key : config_key_table(config)) {
      const std::string was = to_toml(value_in_run(before, key)), is = to_toml(key.get(config));
      if (was != is && key.on_resume == kind) look(key, text(key.name, " was ", was, " and is now ", is));
    }
  };
  of_kind(OnResume::kStays, [&](const ConfigKey&, const std::string& change) { refuse(change); });
  of_kind(OnResume::kUpdatesStay, [&](const ConfigKey&, const std::string&) {
    if (updates_under_way(before) != updates_under_way(config)) {
      refuse(text("it was trained by ", updates_in_words(before), " and would go on by ",
                  updates_in_words(config)));
    }
  });
  of_kind(OnResume::kMayChangeByName, [&](const ConfigKey& key, const std::string& change) {
    if (!is_named(config, key)) refuse(text(change, ", by default; name the value that you want"));
  });
}

DataError no_checkpoint_in(const std::filesystem::path& folder) {
  return DataError(text("no valid checkpoint in ", folder.string(),
                        " to resume from; start the run without --resume, with checkpoint.every_steps set"));
}

checkpoint::TensorMap whole_state(Trainer& trainer) {
  checkpoint::TensorMap state = trainer.model_state();
  for (const auto& [name, tensor] : trainer.state()) state.emplace(of_optimizer(name), tensor);
  return state;
}

void resume(const Resumable& run, comm::Context& context, TakeUp take_up) {
  const RunConfig& config = run.trainer.plan().config();
  at::Tensor step = at::zeros({1}, at::kLong);
  at::Tensor packed = pack(run.progress);
  checkpoint::TensorMap found;
  on_main(context, [&] {
    if (take_up == TakeUp::kNothing) return;
    const auto folder = RunFolder{config.run_folder()}.checkpoints();
    const telemetry::OwnWork work(context.status(), "loading a checkpoint from " + folder.string());
    const auto checkpoint = checkpoint::load_latest_checkpoint(folder, context.log());
    if (!checkpoint) {
      if (take_up == TakeUp::kMustBeThere) throw no_checkpoint_in(folder);
      return;
    }
    check_same_run(config,
                   parse_run_config(checkpoint->config, "the checkpoint's configuration", config.registry),
                   checkpoint->step);
    found = state_in(*checkpoint);
    const auto record = found.find(of_optimizer(kProgress));
    if (record == found.end()) throw DataError(text("the checkpoint has no record '", kProgress, "'"));
    packed = record->second;
    step.fill_(checkpoint->step);
  });
  comm::Group& world = context.world();
  world.broadcast(step, 0);
  if (step.item<std::int64_t>() == 0) return;
  world.broadcast(packed, 0);
  run.exchange.scatter(found, whole_state(run.trainer), "tensor");
  run.progress = unpack(packed);
  run.trainer.seek(step.item<std::int64_t>());
}

checkpoint::TensorMap gather_model(Trainer& trainer, StateExchange& exchange) {
  return exchange.gather(trainer.model_state(),
                         [](const std::string& name) { return !name.starts_with(kOptimizer); });
}

void check_finite(Trainer& trainer, comm::Context& context) {
  const std::vector<std::string> bad = context.world().all_gather_text(trainer.not_finite());
  for (std::size_t rank = 0; rank < bad.size(); ++rank) {
    if (bad[rank].empty()) continue;
    throw DivergedError(text("step ", trainer.steps_done(), ": '", bad[rank], "' on rank ", rank,
                             " holds numbers that are not finite, so this state is not saved and the "
                             "checkpoints before it stay; lower optimizer.lr, warm up (lr.warmup_steps) or "
                             "clip (train.clip_norm)"));
  }
}

checkpoint::TrainingCheckpoint snapshot_of(Trainer& trainer, StateExchange& exchange,
                                           const Progress& progress, const RunConfig& config) {
  const std::int64_t step = trainer.steps_done(), per_epoch = trainer.steps_per_epoch();
  checkpoint::TensorMap mine = whole_state(trainer);
  for (const auto& [name, buffer] : trainer.buffers()) mine.at(name) = buffer.detach().clone();
  checkpoint::TrainingCheckpoint snapshot{.step = step,
                                          .epoch = static_cast<std::uint64_t>(step / per_epoch),
                                          .batch = step % per_epoch,
                                          .config = describe(config)};
  for (auto& [name, tensor] : exchange.gather(mine)) {
    const bool is_model = !name.starts_with(kOptimizer);
    (is_model ? snapshot.model : snapshot.optimizer)
        .emplace(is_model ? name : name.substr(kOptimizer.size()), tensor);
  }
  snapshot.optimizer.emplace(kProgress, pack(progress));
  return snapshot;
}

}  // namespace trireme::train
