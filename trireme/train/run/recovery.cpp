#include "trireme/train/run/recovery.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "trireme/base/error.h"
#include "trireme/checkpoint/shard_reader.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/train/config/internal/config_keys.h"
#include "trireme/train/run/internal/data_record.h"
#include "trireme/train/run/internal/on_main.h"
#include "trireme/train/run/run_folder.h"

namespace trireme::train {
namespace {

std::string updates_in_words(const RunConfig& config) {
  if (config.parallel.pipeline == 1) return "one stage, which updates at the end of a step";
  return text("parallel.schedule = \"", config.parallel.schedule, "\", whose stages update ",
              updates_under_way(config) ? "while micro-batches are under way" : "at the end of a step");
}

/// The value of a key in a saved configuration, or its meaning before the key existed.
ConfigValue value_in_run(const RunConfig& saved, const ConfigKey& key) {
  const bool is_absent = saved.named && !saved.named->contains(key.name);
  return is_absent && key.before_it_was ? *key.before_it_was : key.get(saved);
}

const std::string kProgress = text(checkpoint::kOptimizerPrefix, "run/progress");
const std::string kPatience = text(checkpoint::kOptimizerPrefix, "run/patience");
const std::string kData = text(checkpoint::kOptimizerPrefix, "run/data");  // absent in older checkpoints

at::Tensor as_tensor(const std::string& text) {
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.data_ptr<std::uint8_t>());
  return bytes;
}

/// Reads on one rank only; not collective.
std::string data_record_in(const std::filesystem::path& folder) {
  checkpoint::ShardReader reader(folder);
  const auto stored = reader.tensors().find(kData);
  if (stored == reader.tensors().end()) return "";
  const at::Tensor bytes = at::empty(stored->second.sizes, at::kByte);
  reader.read(kData, checkpoint::whole_box(stored->second.sizes), bytes);
  const auto* text = bytes.const_data_ptr<std::uint8_t>();
  return {text, text + bytes.numel()};
}

/// Sizes in the checkpoint of tensors of parts that restore by size. Collective.
StoredSizes stored_sizes(comm::Context& context, const std::filesystem::path& folder,
                         const StateParts& parts) {
  const auto is_asked_for = [&](const std::string& name) {
    return std::ranges::any_of(
        parts, [&](const StatePart& part) { return part.restore && name.starts_with(part.prefix); });
  };
  std::string found;
  on_main(context, [&] {
    const checkpoint::ShardReader reader(folder);
    for (const auto& [name, stored] : reader.tensors()) {
      if (!is_asked_for(name)) continue;
      for (const std::int64_t size : stored.sizes) found += text(size, ',');
      found += text(' ', name, '\n');
    }
  });
  StoredSizes sizes;
  for (const std::string& line : split(context.world().all_gather_text(found).front(), '\n')) {
    const std::size_t end = line.find(' ');
    if (end == std::string::npos) continue;
    std::vector<std::int64_t>& dims = sizes[line.substr(end + 1)];
    for (const std::string& dim : split(line.substr(0, end), ',')) {
      if (!dim.empty()) dims.push_back(std::stoll(dim));
    }
  }
  return sizes;
}

std::string change_of(const ConfigKey& key, const RunConfig& config, const RunConfig& before) {
  const std::string was = to_toml(value_in_run(before, key)), is = to_toml(key.get(config));
  return was == is ? "" : text(key.name, " was ", was, " and is now ", is);
}

void tell_changes(const Trainer& trainer, const RunConfig& before, const Log& log) {
  const RunConfig& config = trainer.plan().config();
  const std::int64_t step = trainer.steps_done();
  for (const std::string& change : changed_keys(config, before)) log.info("resume: ", change);
  if (trainer.finished()) return;
  const double is = trainer.rate_of(config, step + 1), was = trainer.rate_of(before, step + 1);
  if (is == was) return;
  log.info("resume: the learning rate of step ", step + 1, " is ", is,
           "; as the checkpoint was configured, it would be ", was);
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

/// State of a run besides its trainer. A restore writes `restored`.
StateParts run_parts(const Progress& progress, const data::DataSource& data, Progress* restored = nullptr) {
  const at::Tensor packed = pack(progress), patience = pack_patience(progress);
  StatePart of_progress{.prefix = kProgress, .shards = {checkpoint::whole_shard(kProgress, packed)}};
  of_progress.restore = [shards = of_progress.shards, packed, restored](const StoredSizes&) {
    return Restoration{.shards = shards, .finish = [=] { unpack(packed, *restored); }};
  };
  StatePart of_patience{.prefix = kPatience, .shards = {checkpoint::whole_shard(kPatience, patience)}};
  of_patience.restore = [shards = of_patience.shards, patience, restored](const StoredSizes& stored) {
    if (!stored.contains(kPatience)) return Restoration{};
    return Restoration{.shards = shards, .finish = [=] { unpack_patience(patience, *restored); }};
  };
  StatePart of_data{.prefix = kData,
                    .shards = {checkpoint::whole_shard(kData, as_tensor(data_record_of(data)))},
                    .restore = [](const StoredSizes&) { return Restoration{}; }};
  of_data.shards.front().replicas = checkpoint::Replicas::kFirstCounts;  // each rank opens the data itself
  return {std::move(of_progress), std::move(of_patience), std::move(of_data)};
}

/// All state that a restore fills.
StateParts all_parts(const Resumable& run) {
  StateParts parts = run.trainer.state();
  for (StatePart& part : run_parts(run.progress, run.trainer.data(), &run.progress))
    parts.push_back(std::move(part));
  return parts;
}

void restore_parts(const StateParts& parts, const StoredSizes& stored,
                   const std::function<void(const checkpoint::Shards&)>& fill) {
  checkpoint::Shards shards;
  std::vector<std::function<void()>> finish;
  for (const StatePart& part : parts) {
    Restoration one = part.restore ? part.restore(stored) : Restoration{.shards = part.shards};
    shards.insert(shards.end(), one.shards.begin(), one.shards.end());
    if (one.finish) finish.push_back(std::move(one.finish));
  }
  fill(shards);
  for (const auto& each : finish) each();
}

/// The newest step by rank 0's view of the folder's names; -1: no checkpoint.
std::int64_t newest_step_on_disk(const Resumable& run, comm::Context& context) {
  std::int64_t newest = -1;
  on_main(context, [&] {
    newest = checkpoint::newest_step(RunFolder{run.trainer.plan().config().run_folder()}.checkpoints())
                 .value_or(-1);
  });
  return std::stoll(context.world().all_gather_text(std::to_string(newest)).front());
}

/// Warns if some ranks have kept a state of which lost ranks had parts. Collective.
void warn_of_lost_state(comm::Context& context, const std::vector<checkpoint::HeldState>& held) {
  const std::vector<std::string> kept = context.world().all_gather_text(held.empty() ? "" : "kept");
  if (context.is_main() && std::ranges::count(kept, "kept") > 0)
    context.log().warning(
        "the state in the memory of the ranks is incomplete: ranks that are lost had parts of it. The run "
        "continues from its newest checkpoint, or from its start");
}

StateParts parts_to_save(Trainer& trainer, const Progress& progress) {
  StateParts parts = trainer.state();
  for (StatePart& part : run_parts(progress, trainer.data())) parts.push_back(std::move(part));
  return parts;
}

}  // namespace

void restore_state(const StateParts& parts, comm::Context& context, const std::filesystem::path& folder,
                   const std::vector<bool>& sees) {
  restore_parts(parts, stored_sizes(context, folder, parts), [&](const checkpoint::Shards& shards) {
    checkpoint::load_shards(context.world(), folder, shards, sees, "tensor");
  });
}

bool resume_from_memory(const Resumable& run, comm::Context& context,
                        const std::vector<checkpoint::HeldState>& held) {
  comm::Group& world = context.world();
  const checkpoint::HeldStates states(world, held);
  if (!states.newest()) warn_of_lost_state(context, held);
  if (!states.newest() || newest_step_on_disk(run, context) > states.newest()->step) return false;
  const telemetry::OwnWork work(context.status(), "restoring the state from the memory of the ranks");
  StoredSizes stored;
  for (const auto& entry : states.newest()->entries) stored[entry.name] = entry.global_sizes;
  restore_parts(all_parts(run), stored, [&](const checkpoint::Shards& shards) { states.restore(shards); });
  run.trainer.seek(states.newest()->step);
  if (context.is_main())
    context.log().info("resumed from the memory of the ranks at step ", states.newest()->step);
  return true;
}

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
      refuse(text("it was trained by ", updates_in_words(before), " and would continue by ",
                  updates_in_words(config)));
    }
  });
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

RunConfig config_of_checkpoint(const std::string& content, const RunConfig& config) {
  try {
    return parse_run_config(content, "the checkpoint's configuration", config.registry);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(
        text("cannot resume run '", config.run.name, "': ", error.what(),
             "; the run cannot be resumed with this version: start a fresh one, which may begin "
             "with its weights (trireme checkpoint export, model.weights)"));
  }
}

DataError no_checkpoint_in(const std::filesystem::path& folder) {
  return DataError(text("no valid checkpoint in ", folder.string(),
                        " to resume from; start the run without --resume, with checkpoint.every_steps set"));
}

checkpoint::Shards state_to_save(Trainer& trainer, const Progress& progress) {
  return shards_of(parts_to_save(trainer, progress));
}

void resume(const Resumable& run, comm::Context& context, ResumeMode resume_mode) {
  comm::Group& world = context.world();
  const auto own_answer = std::to_string(static_cast<int>(resume_mode));
  resume_mode = static_cast<ResumeMode>(std::stoi(world.all_gather_text(own_answer).front()));
  if (resume_mode == ResumeMode::kNever) return;
  const RunConfig& config = run.trainer.plan().config();
  const auto folder = RunFolder{config.run_folder()}.checkpoints();
  const telemetry::OwnWork work(context.status(), "loading a checkpoint from " + folder.string());
  const auto found = checkpoint::find_latest_checkpoint(world, folder, run.sees, context.log());
  if (!found && resume_mode == ResumeMode::kRequired) throw no_checkpoint_in(folder);
  if (!found) return;
  RunConfig before;
  on_main(context, [&] {
    before = config_of_checkpoint(found->head.config, config);
    check_same_run(config, before, found->head.step);
    check_same_data(run.trainer.data(), data_record_in(found->folder), context.log());
  });
  restore_state(all_parts(run), context, found->folder, run.sees);
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

void check_outcome(const Evaluation& evaluation, std::int64_t step) {
  if (std::isfinite(evaluation.loss)) return;
  throw DivergedError(text("step ", step,
                           ": the loss of the evaluation at the end is not a "
                           "finite number, so this state is not saved and the checkpoints before it stay; "
                           "lower optimizer.lr, warm up (lr.warmup_steps) or clip (train.clip_norm)"));
}

std::optional<checkpoint::CheckpointPart> snapshot_of(Trainer& trainer, checkpoint::SaveShares& shares,
                                                      const Progress& progress, const RunConfig& config) {
  const data::BatchPlace next = trainer.step_schedule().batch(trainer.steps_done());
  checkpoint::Shards mine;
  for (StatePart& part : parts_to_save(trainer, progress)) {
    for (checkpoint::Shard& shard : part.shards) {
      if (part.changes != ChangesIn::kUpdate) shard.tensor = shard.tensor.clone();
      mine.push_back(std::move(shard));
    }
  }
  return shares.next_part(
      mine,
      {.step = trainer.steps_done(), .epoch = next.epoch, .batch = next.number, .config = describe(config)});
}

}  // namespace trireme::train
