#include "trireme/checkpoint/loop_checkpoints.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <random>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/checkpoint/shard_reader.h"
#include "trireme/checkpoint/shared_folder.h"
#include "trireme/checkpoint/tensor_match.h"
#include "trireme/comm/on_every_rank.h"
#include "trireme/optim/wrapped_parameter.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

const std::string kOfOthers = text(kOptimizerPrefix, "others/");
const std::string kOfGenerators = text(kOptimizerPrefix, "generator/");
const std::string kOfCounters = text(kOptimizerPrefix, "counter/");
const std::string kOfSchedulers = text(kOptimizerPrefix, "scheduler/");
std::string of_scheduler(std::size_t number) { return text(kOfSchedulers, number, "/"); }
std::string of_generators_of(int rank) { return text(kOfGenerators, rank, "/"); }

/// Names, types and sizes as text, for ranks that have other tensors or do not see the checkpoint.
std::string told(const TensorMap& tensors) {
  std::string lines;
  for (const auto& [name, tensor] : tensors) {
    lines += text(name, "\t", static_cast<int>(tensor.scalar_type()));
    for (const std::int64_t size : tensor.sizes()) lines += text("\t", size);
    lines += "\n";
  }
  return lines;
}

at::Tensor without_memory(at::IntArrayRef sizes, at::ScalarType type) {
  return at::empty(sizes, at::TensorOptions(type).device(at::kMeta));
}

/// The tensors in the text of told(), without memory.
TensorMap heard(const std::string& lines) {
  TensorMap tensors;
  for (const std::string& line : split(lines, '\n')) {
    if (line.empty()) continue;
    const std::vector<std::string> fields = split(line, '\t');
    std::vector<std::int64_t> sizes;
    for (std::size_t i = 2; i < fields.size(); ++i) sizes.push_back(std::stoll(fields[i]));
    tensors.emplace(fields[0], without_memory(sizes, static_cast<at::ScalarType>(std::stoi(fields[1]))));
  }
  return tensors;
}

/// The tensors of a checkpoint, without memory; the same on all ranks.
TensorMap held_by(comm::Group& group, const fs::path& checkpoint) {
  std::string lines;
  comm::on_every_rank(group, [&] {
    if (group.rank() != 0) return;
    const ShardReader reader(checkpoint);
    TensorMap held;
    for (const auto& [name, stored] : reader.tensors())
      held.emplace(name, without_memory(stored.sizes, stored.type));
    lines = told(held);
  });
  return heard(group.all_gather_text(lines).front());
}

/// Host memory for the tensors of a checkpoint under a prefix. Names are without the prefix.
TensorMap room_for(const TensorMap& held, const std::string& prefix) {
  TensorMap room;
  for (const auto& [name, tensor] : held)
    if (name.starts_with(prefix))
      room.emplace(name.substr(prefix.size()), at::empty(tensor.sizes(), tensor.scalar_type()));
  return room;
}

void add(Shards& shards, const std::string& prefix, const TensorMap& tensors) {
  for (const auto& [name, tensor] : tensors) shards.push_back(whole_shard(prefix + name, tensor));
}

/// For tensors of which the first rank's values are saved.
void require_same_everywhere(const TensorMap& others) {
  for (const auto& [name, tensor] : others) {
    const auto wrapper = optim::wrapper_of(tensor);
    require(wrapper == nullptr, "others has a tensor '", name, "' that belongs to a ",
            wrapper ? wrapper->name : "", ", of which this rank has a part; expected the same values on all ",
            "ranks: train::sharded_loop() saves those of a FullyShardedDataParallel, and ",
            "train::pipeline_loop() those of a Pipeline");
  }
}

/// Prefixes of a model's weights and of its optimizer state in the checkpoint.
std::string of_weights(const std::string& model) { return model.empty() ? "" : model + "."; }
std::string of_state(const std::string& model) {
  return model.empty() ? kOptimizerPrefix : text(kOptimizerPrefix, model, ".");
}

Shards called(const std::string& prefix, Shards shards) {
  for (Shard& shard : shards) shard.name = prefix + shard.name;
  return shards;
}

void append(Shards& to, Shards shards) {
  to.insert(to.end(), std::make_move_iterator(shards.begin()), std::make_move_iterator(shards.end()));
}

/// Whether the tensor belongs to no model.
bool is_of_loop(const std::string& name) {
  return std::ranges::any_of(std::array{&kOfOthers, &kOfGenerators, &kOfSchedulers, &kOfCounters},
                             [&](const std::string* prefix) { return name.starts_with(*prefix); });
}

TensorMap those_of(const TensorMap& held, const std::function<bool(const std::string&)>& is_one) {
  TensorMap found = held;
  std::erase_if(found, [&](const auto& item) { return !is_one(item.first); });
  return found;
}

TensorMap without_prefix(const TensorMap& held, const std::string& prefix) {
  TensorMap found;
  for (const auto& [name, tensor] : held)
    if (name.starts_with(prefix)) found.emplace(name.substr(prefix.size()), tensor);
  return found;
}

/// Rejects a name that no rank loads, because it would be lost silently. It belongs to another optimizer or
/// model.
void require_same_names(comm::Group& group, const Shards& mine, const TensorMap& held,
                        const std::string& source) {
  TensorMap names, expected;
  for (const Shard& shard : mine)
    names.emplace(shard.name, without_memory(shard.global_sizes, shard.tensor.scalar_type()));
  for (const std::string& lines : group.all_gather_text(told(names))) expected.merge(heard(lines));
  check_same_tensors(held, expected, source);
}

}  // namespace

LoopCheckpoints::LoopCheckpoints(comm::Context& context, fs::path folder, LoopModels models,
                                 LoopOptions options)
    : context_(context),
      folder_(std::move(folder)),
      models_(std::move(models)),
      options_(std::move(options)) {
  require(options_.keep >= 1, "keep is ", options_.keep, "; at least 1 checkpoint stays");
  require_same_everywhere(options_.others);
  if (options_.generators.empty()) options_.generators = {at::detail::getDefaultCPUGenerator()};
  const fs::path witness = folder_ / ".ranks";
  comm::on_every_rank(context_.world(), [&] {
    if (!context_.is_main()) return;
    make_folder(folder_);
    write_file_atomic(witness, text(std::random_device()(), "-", std::random_device()(), "\n"));
  });
  sees_folder_ = ranks_that_see(context_.world(), witness);
}

TensorMap LoopCheckpoints::counters() const {
  TensorMap values;
  for (const auto& [name, counter] : options_.counters)
    values.emplace(name, at::scalar_tensor(*counter, at::kLong));
  return values;
}

Shards LoopCheckpoints::shards_to_save() const {
  Shards shards;
  for (const auto& [name, model] : models_.by_name()) {
    append(shards, called(of_weights(name), model.weights()));
    append(shards, called(of_state(name), model.optimizer_state()));
  }
  require_same_everywhere(options_.others);
  add(shards, kOfOthers, options_.others);
  add(shards, kOfCounters, counters());
  for (std::size_t i = 0; i < options_.schedulers.size(); ++i)
    add(shards, of_scheduler(i), options_.schedulers[i].state());
  for (std::size_t i = 0; i < options_.generators.size(); ++i)
    shards.push_back(
        whole_shard(text(of_generators_of(context_.rank()), i), state_of(options_.generators[i])));
  return shards;
}

void LoopCheckpoints::save(std::int64_t step) {
  require(step > 0, "a checkpoint is of a step from 1 on, found ", step);
  Shards mine;
  comm::on_every_rank(context_.world(), [&] { mine = shards_to_save(); });
  SaveShares shares(context_.world(), mine, sees_folder_);
  save_together(context_.world(), shares.next_part(mine, {.step = step}), folder_, options_.keep);
}

Shards LoopCheckpoints::models_to_fill(const TensorMap& held, const std::string& source) {
  const auto is_state = [](const std::string& name) { return name.starts_with(kOptimizerPrefix); };
  Shards weights, state;
  comm::on_every_rank(context_.world(), [&] {
    for (const auto& [name, model] : models_.by_name())
      append(weights, called(of_weights(name), model.weights()));
  });
  require_same_names(context_.world(), weights, those_of(held, std::not_fn(is_state)), source);
  const TensorMap held_state =
      those_of(held, [&](const std::string& name) { return is_state(name) && !is_of_loop(name); });
  comm::on_every_rank(context_.world(), [&] {
    for (auto& [name, model] : models_.by_name())
      append(state,
             called(of_state(name), model.room_for(without_prefix(held_state, of_state(name)), source)));
  });
  require_same_names(context_.world(), state, held_state, source);
  append(weights, std::move(state));
  return weights;
}

std::vector<TensorMap> LoopCheckpoints::rooms_of_schedulers(const TensorMap& held,
                                                            const std::string& source) const {
  std::vector<TensorMap> rooms;
  for (std::size_t i = 0; i < options_.schedulers.size(); ++i) {
    rooms.push_back(room_for(held, of_scheduler(i)));
    if (rooms.back().empty() && context_.is_main())
      context_.log().warning(source, " holds nothing of learning-rate scheduler ", i,
                             ": it stays as it is, at its own first step");
    if (!rooms.back().empty()) options_.schedulers[i].check_fits(rooms.back());
  }
  const bool has_more = !room_for(held, of_scheduler(options_.schedulers.size())).empty();
  if (has_more && context_.is_main())
    context_.log().warning(
        source, " holds more than the ", options_.schedulers.size(),
        " learning-rate schedulers of this loop (LoopOptions::schedulers): the rest is not "
        "restored");
  return rooms;
}

TensorMap LoopCheckpoints::room_of_generators(const TensorMap& held, const std::string& source) const {
  const auto is_held = [&](const std::string& prefix) {
    return std::ranges::any_of(held, [&](const auto& each) { return each.first.starts_with(prefix); });
  };
  const int ranks = context_.world_size();
  if (is_held(of_generators_of(ranks - 1)) && !is_held(of_generators_of(ranks)))
    return room_for(held, of_generators_of(context_.rank()));
  if (context_.is_main())
    context_.log().warning(source, " was saved by another number of ranks than ", ranks,
                           ": generators stay as they are");
  return {};
}

std::int64_t LoopCheckpoints::restore() {
  const auto found = find_latest_checkpoint(context_.world(), folder_, sees_folder_, context_.log());
  if (!found) return 0;
  const std::string source = found->folder.string();
  const TensorMap held = held_by(context_.world(), found->folder);
  Shards shards = models_to_fill(held, source);
  add(shards, kOfOthers, options_.others);
  const TensorMap counted = counters();
  add(shards, kOfCounters, counted);
  std::vector<TensorMap> of_schedulers;
  comm::on_every_rank(context_.world(), [&] { of_schedulers = rooms_of_schedulers(held, source); });
  for (std::size_t i = 0; i < of_schedulers.size(); ++i) add(shards, of_scheduler(i), of_schedulers[i]);
  const TensorMap of_generators = room_of_generators(held, source);
  add(shards, of_generators_of(context_.rank()), of_generators);
  load_shards(context_.world(), found->folder, shards, sees_folder_, "tensor");
  comm::on_every_rank(context_.world(), [&] {
    for (auto& [name, model] : models_.by_name()) {
      model.weights_filled();
      model.state_filled(source);
    }
  });
  comm::on_every_rank(context_.world(), [&] {
    for (const auto& [name, value] : counted) *options_.counters.at(name) = value.item<std::int64_t>();
    for (std::size_t i = 0; i < of_schedulers.size(); ++i) {
      if (!of_schedulers[i].empty()) options_.schedulers[i].restore(of_schedulers[i]);
    }
    for (std::size_t i = 0; i < options_.generators.size(); ++i) {
      const auto state = of_generators.find(text(i));
      if (state != of_generators.end()) checkpoint::restore(options_.generators[i], state->second);
    }
  });
  return found->head.step;
}

}  // namespace trireme::checkpoint
