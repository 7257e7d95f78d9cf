#include "trireme/train/recovery.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "trireme/base/error.h"
#include "trireme/checkpoint/shard_reader.h"
#include "trireme/train/held_parts.h"
#include "trireme/train/internal/compression.h"
#include "trireme/train/internal/config_keys.h"
#include "trireme/train/internal/data_record.h"
#include "trireme/train/internal/local_steps.h"
#include "trireme/train/internal/on_main.h"
#include "trireme/train/noise_scale.h"
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

std::string of_optimizer(const std::string& name) { return checkpoint::kOptimizerPrefix + name; }
const std::string kProgress = of_optimizer("run/progress");
const std::string kPatience = of_optimizer("run/patience");
const std::string kData = of_optimizer("run/data");  // absent in older checkpoints
const std::string kNoise = of_optimizer(Trainer::kNoise);

at::Tensor as_tensor(const std::string& text) {
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.data_ptr<std::uint8_t>());
  return bytes;
}

/// On one rank, without the others.
std::string data_record_in(const std::filesystem::path& folder) {
  checkpoint::ShardReader reader(folder);
  const auto stored = reader.tensors().find(kData);
  if (stored == reader.tensors().end()) return "";
  const at::Tensor bytes = at::empty(stored->second.sizes, at::kByte);
  reader.read(kData, checkpoint::whole_box(stored->second.sizes), bytes);
  const auto* text = bytes.const_data_ptr<std::uint8_t>();
  return {text, text + bytes.numel()};
}

/// What not every checkpoint holds.
struct Stored {
  std::vector<std::int64_t> bytes_of_choices;  ///< as Trainer::kChoices; 0: none
  bool noise = false;                          ///< averages of the noise of gradients
  bool patience = false;                       ///< how long evaluations have been no better
};

Stored stored_in(comm::Context& context, const std::filesystem::path& folder) {
  std::string found;
  on_main(context, [&] {
    const checkpoint::ShardReader reader(folder);
    const auto& tensors = reader.tensors();
    for (const char* name : Trainer::kChoices) {
      const auto stored = tensors.find(of_optimizer(name));
      found += text(stored == tensors.end() ? 0 : stored->second.sizes.at(0), ' ');
    }
    found += text(tensors.contains(kNoise + "average"), ' ', tensors.contains(kPatience));
  });
  std::istringstream in(context.world().all_gather_text(found).front());
  Stored stored{.bytes_of_choices = std::vector<std::int64_t>(Trainer::kChoices.size())};
  for (std::int64_t& bytes : stored.bytes_of_choices) in >> bytes;
  in >> stored.noise >> stored.patience;
  return stored;
}

/// Gains add up from the first step on.
void check_same_progress(const RunConfig& config, const RunConfig& before, std::int64_t step) {
  require(uses_ada_scale(config) == uses_ada_scale(before), "cannot resume run '", config.run.name,
          "' from step ", step, ": lr.scale_with_batch was \"", before.learning_rate.scale_with_batch,
          "\" and is now \"", config.learning_rate.scale_with_batch,
          "\", and progress is the sum of the gains of all steps; set it back, or start a fresh run");
}

/// Forward changes buffers, and backward what compressed reductions keep.
bool changes_before_update(const checkpoint::Shard& shard) {
  return shard.replicas == checkpoint::Replicas::kFirstCounts || shard.name.starts_with(kCompressionState);
}

std::string change_of(const ConfigKey& key, const RunConfig& config, const RunConfig& before) {
  const std::string was = to_toml(value_in_run(before, key)), is = to_toml(key.get(config));
  return was == is ? "" : text(key.name, " was ", was, " and is now ", is);
}

/// With AdaScale a rate also follows from the gain of its step.
void tell_changes(const Trainer& trainer, const RunConfig& before, const Log& log) {
  const RunConfig& config = trainer.plan().config();
  const std::int64_t step = trainer.steps_done();
  for (const std::string& change : changed_keys(config, before)) log.info("resume: ", change);
  if (uses_ada_scale(config) || trainer.finished()) return;
  log.info("resume: the learning rate of step ", step + 1, " is ", trainer.rate_of(config, step + 1),
           "; as the checkpoint was configured, it would be ", trainer.rate_of(before, step + 1));
}

at::Tensor pack(const Progress& progress) {
  const EpochLoss& loss = progress.epoch_loss;
  return at::tensor({static_cast<double>(loss.epoch), loss.count, loss.sum, progress.best_score},
                    at::kDouble);
}

void unpack(const at::Tensor& packed, Progress& progress) {
  const auto* values = packed.data_ptr<double>();
  progress.epoch_loss = {.epoch = static_cast<std::int64_t>(values[0]), .count = values[1], .sum = values[2]};
  progress.best_score = values[3];
}

at::Tensor pack_patience(const Progress& progress) {
  return at::tensor({progress.patience.best, static_cast<double>(progress.patience.since)}, at::kDouble);
}

void unpack_patience(const at::Tensor& packed, Progress& progress) {
  const auto* values = packed.data_ptr<double>();
  progress.patience = {.best = values[0], .since = static_cast<std::int64_t>(values[1])};
}

}  // namespace

void check_same_run(const RunConfig& config, const RunConfig& before, std::int64_t step) {
  const auto refuse = [&](const std::string& reason) {
    throw InvalidArgument(text("cannot resume run '", config.run.name, "' from step ", step, ": ", reason,
                               "; set it back, or start a fresh run"));
  };
  const auto of_kind = [&](OnResume kind, const auto& look) {
    for (const ConfigKey& key : config_key_table(config)) {
      const std::string change = change_of(key, config, before);
      if (!change.empty() && key.on_resume == kind) look(key, change);
    }
  };
  of_kind(OnResume::kStays, [&](const ConfigKey&, const std::string& change) { refuse(change); });
  of_kind(OnResume::kUpdatesStay, [&](const ConfigKey&, const std::string&) {
    if (updates_under_way(before) != updates_under_way(config)) {
      refuse(text("it was trained by ", updates_in_words(before), " and would go on by ",
                  updates_in_words(config)));
    }
  });
  check_same_progress(config, before, step);
  of_kind(OnResume::kMayChangeByName, [&](const ConfigKey& key, const std::string& change) {
    if (!is_named(config, key)) refuse(text(change, ", by default; name the value that you want"));
  });
}

std::vector<std::string> changed_keys(const RunConfig& config, const RunConfig& before) {
  std::vector<std::string> changes;
  for (const ConfigKey& key : config_key_table(config)) {
    if (std::string change = change_of(key, config, before); !change.empty())
      changes.push_back(std::move(change));
  }
  return changes;
}

DataError no_checkpoint_in(const std::filesystem::path& folder) {
  return DataError(text("no valid checkpoint in ", folder.string(),
                        " to resume from; start the run without --resume, with checkpoint.every_steps set"));
}

checkpoint::Shards model_shards(Trainer& trainer) {
  checkpoint::Shards shards = shards_of(trainer.model_state(), trainer.held());
  std::set<std::string> buffers;
  for (const auto& [name, buffer] : trainer.buffers()) buffers.insert(name);
  for (checkpoint::Shard& shard : shards) {
    if (shard.tensor.is_meta()) shard.elsewhere = trainer.elsewhere();
    if (buffers.contains(shard.name)) shard.replicas = checkpoint::Replicas::kFirstCounts;
  }
  return shards;
}

checkpoint::Shards whole_state(Trainer& trainer) {
  checkpoint::Shards state = model_shards(trainer);
  const std::shared_ptr<const checkpoint::Elsewhere> elsewhere = trainer.elsewhere();
  for (checkpoint::Shard& shard : shards_of(trainer.state(), trainer.held())) {
    shard.name = of_optimizer(shard.name);
    if (trainer.outer_steps() != nullptr) shard.replicas = checkpoint::Replicas::kFirstCounts;
    if (shard.tensor.is_meta()) shard.elsewhere = elsewhere;
    state.push_back(std::move(shard));
  }
  return state;
}

checkpoint::Shards state_to_save(Trainer& trainer, const Progress& progress) {
  checkpoint::Shards state = whole_state(trainer);
  for (checkpoint::Shard& shard : compression_shards(trainer)) state.push_back(std::move(shard));
  for (checkpoint::Shard& shard : site_shards(trainer)) state.push_back(std::move(shard));
  state.push_back(checkpoint::whole_shard(kProgress, pack(progress)));
  state.push_back(checkpoint::whole_shard(kPatience, pack_patience(progress)));
  state.push_back(checkpoint::whole_shard(kData, as_tensor(data_record_of(trainer.data()))));
  state.back().replicas = checkpoint::Replicas::kFirstCounts;  // each rank opens the data for itself
  return state;
}

void resume(const Resumable& run, comm::Context& context, TakeUp take_up) {
  comm::Group& world = context.world();
  const auto own_answer = std::to_string(static_cast<int>(take_up));
  take_up = static_cast<TakeUp>(std::stoi(world.all_gather_text(own_answer).front()));
  if (take_up == TakeUp::kNothing) return;
  const RunConfig& config = run.trainer.plan().config();
  const auto folder = RunFolder{config.run_folder()}.checkpoints();
  const telemetry::OwnWork work(context.status(), "loading a checkpoint from " + folder.string());
  const auto found = checkpoint::find_latest_checkpoint(world, folder, run.sees, context.log());
  if (!found && take_up == TakeUp::kMustBeThere) throw no_checkpoint_in(folder);
  if (!found) return;
  RunConfig before;
  on_main(context, [&] {
    before = parse_run_config(found->head.config, "the checkpoint's configuration", config.registry);
    check_same_run(config, before, found->head.step);
    check_same_data(run.trainer.data(), data_record_in(found->folder), context.log());
  });
  const Stored stored = stored_in(context, found->folder);
  for (std::size_t i = 0; i < Trainer::kChoices.size(); ++i)
    run.trainer.make_room_for_choice(Trainer::kChoices[i], stored.bytes_of_choices[i]);
  checkpoint::Shards state = whole_state(run.trainer);
  if (!stored.noise)
    std::erase_if(state, [](const checkpoint::Shard& shard) { return shard.name.starts_with(kNoise); });
  const KeptByCompression kept(run.trainer, context, found->folder);
  state.insert(state.end(), kept.shards().begin(), kept.shards().end());
  const KeptBySites by_sites(run.trainer, context, found->folder);
  state.insert(state.end(), by_sites.shards().begin(), by_sites.shards().end());
  const at::Tensor progress = pack(run.progress), patience = pack_patience(run.progress);
  state.push_back(checkpoint::whole_shard(kProgress, progress));
  if (stored.patience) state.push_back(checkpoint::whole_shard(kPatience, patience));
  checkpoint::load_shards(world, found->folder, state, run.sees, "tensor");
  kept.take_up();
  run.trainer.compression_restored();
  by_sites.take_up();
  unpack(progress, run.progress);
  unpack_patience(patience, run.progress);
  run.trainer.seek(found->head.step);
  if (context.is_main()) tell_changes(run.trainer, before, context.log());
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

std::optional<checkpoint::CheckpointPart> snapshot_of(Trainer& trainer, checkpoint::SaveShares& shares,
                                                      const Progress& progress, const RunConfig& config) {
  const data::BatchPlace next = trainer.calendar().batch(trainer.steps_done());
  checkpoint::Shards mine = state_to_save(trainer, progress);
  for (checkpoint::Shard& shard : mine) {
    if (changes_before_update(shard)) shard.tensor = shard.tensor.clone();
  }
  return shares.next_part(
      mine,
      {.step = trainer.steps_done(), .epoch = next.epoch, .batch = next.number, .config = describe(config)});
}

}  // namespace trireme::train
