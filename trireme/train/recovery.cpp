#include "trireme/train/recovery.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>

#include "trireme/base/error.h"
#include "trireme/train/internal/config_keys.h"
#include "trireme/train/model_state.h"

namespace trireme::train {
namespace {

/// Keys that a resumed run may not change: it would go on with other numbers, or none at all.
constexpr std::array<std::string_view, 15> kFixedKeys{
    "run.seed",     "data.name",         "data.block",         "data.image_size", "data.undecodable",
    "data.augment", "data.crop_padding", "model.name",         "model.hidden",    "model.layers",
    "model.heads",  "model.width",       "train.global_batch", "train.precision", "optimizer.name"};

void check_same_run(const RunConfig& config, const checkpoint::TrainingCheckpoint& checkpoint) {
  const RunConfig before = parse_run_config(checkpoint.config, "the checkpoint's configuration");
  for (const ConfigKey& key : config_key_table()) {
    if (std::find(kFixedKeys.begin(), kFixedKeys.end(), key.name) == kFixedKeys.end()) continue;
    const std::string was = to_toml(key.get(before)), is = to_toml(key.get(config));
    require(was == is, "cannot resume run '", config.run.name, "' from step ", checkpoint.step, ": ",
            key.name, " was ", was, " and is now ", is, "; set it back, or start a fresh run");
  }
}

/// Copies each tensor of `from` into the one of that name in `to`.
void copy_tensors(const checkpoint::TensorMap& from, const checkpoint::TensorMap& to, const char* what) {
  for (const auto& [name, target] : to) {
    const auto source = from.find(name);
    if (source == from.end()) throw DataError(text("the checkpoint has no ", what, " '", name, "'"));
    if (source->second.sizes() != target.sizes() || source->second.scalar_type() != target.scalar_type()) {
      throw DataError(text("the checkpoint's ", what, " '", name, "' has shape ", source->second.sizes(),
                           " and type ", source->second.scalar_type(), ", this run's ", target.sizes(),
                           " and ", target.scalar_type()));
    }
    target.copy_(source->second);
  }
}

/// Everything that changes while a run goes on, by name. Tensors are shared with the trainer.
checkpoint::TensorMap whole_state(Trainer& trainer) {
  checkpoint::TensorMap state = state_of(trainer.model());
  for (const auto& [name, tensor] : trainer.state()) state.emplace("optimizer/" + name, tensor);
  return state;
}

constexpr const char* kProgress = "run/progress";

at::Tensor pack(const Progress& progress) {
  const EpochLoss& loss = progress.epoch_loss;
  return at::tensor(
      {static_cast<double>(loss.epoch), static_cast<double>(loss.samples), loss.sum, progress.best_score},
      at::kDouble);
}

Progress unpack(const at::Tensor& packed) {
  const auto* values = packed.data_ptr<double>();
  return {.epoch_loss = {.epoch = static_cast<std::int64_t>(values[0]),
                         .samples = static_cast<std::int64_t>(values[1]),
                         .sum = values[2]},
          .best_score = values[3]};
}

/// Restores rank 0 from the newest valid checkpoint. Returns its step; 0 when there is none.
std::int64_t load_on_main(Trainer& trainer, at::Tensor& packed, const RunConfig& config,
                          const std::filesystem::path& folder, const Log& log) {
  std::optional<checkpoint::TrainingCheckpoint> found = checkpoint::load_latest_checkpoint(folder, log);
  if (!found) return 0;
  check_same_run(config, *found);
  copy_tensors(found->model, state_of(trainer.model()), "tensor");
  copy_tensors(found->optimizer, trainer.state(), "optimizer state");
  copy_tensors(found->optimizer, {{kProgress, packed}}, "record");
  return found->step;
}

}  // namespace

void resume(Trainer& trainer, Progress& progress, const RunConfig& config, comm::Context& context,
            const std::filesystem::path& folder, NoCheckpoint otherwise) {
  const at::NoGradGuard no_grad;
  at::Tensor step = at::zeros({1}, at::kLong);
  at::Tensor packed = pack(progress);
  if (context.is_main()) {
    step.fill_(load_on_main(trainer, packed, config, folder, context.log()));
    if (step.item<std::int64_t>() == 0 && otherwise == NoCheckpoint::kError) {
      throw DataError(
          text("no valid checkpoint in ", folder.string(),
               " to resume from; start the run without --resume, with checkpoint.every_steps set"));
    }
  }
  comm::Group& world = context.world();
  world.broadcast(step, 0);
  if (step.item<std::int64_t>() == 0) return;
  world.broadcast(packed, 0);
  for (auto& [name, tensor] : whole_state(trainer)) {
    at::Tensor shared = tensor;
    world.broadcast(shared, 0);
  }
  progress = unpack(packed);
  trainer.seek(step.item<std::int64_t>());
}

checkpoint::TrainingCheckpoint snapshot_of(Trainer& trainer, const Progress& progress,
                                           const RunConfig& config) {
  const std::int64_t step = trainer.steps_done(), per_epoch = trainer.steps_per_epoch();
  checkpoint::TrainingCheckpoint snapshot{.step = step,
                                          .epoch = static_cast<std::uint64_t>(step / per_epoch),
                                          .batch = step % per_epoch,
                                          .model = state_of(trainer.model()),
                                          .optimizer = trainer.state(),
                                          .config = describe(config)};
  for (const auto& buffer : trainer.model().named_buffers()) {
    at::Tensor& saved = snapshot.model.at(buffer.key());
    saved = saved.clone();
  }
  snapshot.optimizer.emplace(kProgress, pack(progress));
  return snapshot;
}

}  // namespace trireme::train
