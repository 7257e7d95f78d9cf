#include "trireme/checkpoint/loop_checkpoints.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <random>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/checkpoint/shard_reader.h"
#include "trireme/checkpoint/shared_folder.h"
#include "trireme/checkpoint/tensor_match.h"
#include "trireme/comm/on_every_rank.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string of_optimizer(std::size_t number) { return text(kOptimizerPrefix, number, "/"); }
std::string of_others(const std::string& name) { return text(kOptimizerPrefix, "others/", name); }
std::string of_generators_of(int rank) { return text(kOptimizerPrefix, "generator/", rank, "/"); }

/// What a checkpoint holds, told by rank 0 to those that may not see it: names, types and sizes.
struct Held {
  std::string name;
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> sizes;
};

std::vector<Held> held_by(comm::Group& group, const fs::path& checkpoint) {
  std::string told;
  comm::on_every_rank(group, [&] {
    if (group.rank() != 0) return;
    const ShardReader reader(checkpoint);
    for (const auto& [name, stored] : reader.tensors()) {
      told += text(name, "\t", static_cast<int>(stored.type));
      for (const std::int64_t size : stored.sizes) told += text("\t", size);
      told += "\n";
    }
  });
  std::vector<Held> all;
  for (const std::string& line : split(group.all_gather_text(told).front(), '\n')) {
    if (line.empty()) continue;
    const std::vector<std::string> fields = split(line, '\t');
    Held held{.name = fields[0], .type = static_cast<at::ScalarType>(std::stoi(fields[1])), .sizes = {}};
    for (std::size_t i = 2; i < fields.size(); ++i) held.sizes.push_back(std::stoll(fields[i]));
    all.push_back(std::move(held));
  }
  return all;
}

/// Room for what a checkpoint holds under a prefix, by the rest of the names.
TensorMap room_for(const std::vector<Held>& all, const std::string& prefix, at::Device device) {
  TensorMap room;
  for (const Held& held : all) {
    if (!held.name.starts_with(prefix)) continue;
    const bool is_number = held.sizes.empty();  // steps and rates stay with the host
    room.emplace(held.name.substr(prefix.size()),
                 at::empty(held.sizes, at::TensorOptions(held.type).device(is_number ? at::kCPU : device)));
  }
  return room;
}

void add(Shards& shards, const std::string& prefix, const TensorMap& tensors) {
  for (const auto& [name, tensor] : tensors) shards.push_back(whole_shard(prefix + name, tensor));
}

/// Of names alone: copies nothing.
void check_same_module(const std::vector<Held>& held, const torch::nn::Module& module,
                       const fs::path& checkpoint) {
  TensorMap found;
  for (const Held& each : held) {
    if (!each.name.starts_with(kOptimizerPrefix))
      found.emplace(each.name, at::empty(each.sizes, at::TensorOptions(each.type).device(at::kMeta)));
  }
  check_same_tensors(found, state_of(module), checkpoint.string());
}

at::Device device_of(const torch::nn::Module& module) {
  const std::vector<at::Tensor> parameters = module.parameters();
  return parameters.empty() ? at::Device(at::kCPU) : parameters.front().device();
}

}  // namespace

LoopCheckpoints::LoopCheckpoints(comm::Context& context, fs::path folder, LoopState state, int keep)
    : context_(context), folder_(std::move(folder)), state_(std::move(state)), keep_(keep) {
  require(keep_ >= 1, "keep is ", keep_, "; at least 1 checkpoint stays");
  if (state_.generators.empty()) state_.generators = {at::detail::getDefaultCPUGenerator()};
  const fs::path witness = folder_ / ".ranks";
  comm::on_every_rank(context_.world(), [&] {
    if (!context_.is_main()) return;
    make_folder(folder_);
    write_file_atomic(witness, text(std::random_device()(), "-", std::random_device()(), "\n"));
  });
  sees_folder_ = ranks_that_see(context_.world(), witness);
}

/// Buffers are those of the first replica; the other tensors are equal on all ranks.
Shards LoopCheckpoints::shards_to_save() const {
  Shards shards;
  for (const auto& [name, tensor] : state_of(state_.module)) {
    shards.push_back(whole_shard(name, tensor));
    if (!state_.module.named_parameters().contains(name)) shards.back().replicas = Replicas::kFirstCounts;
  }
  for (std::size_t i = 0; i < state_.optimizers.size(); ++i)
    add(shards, of_optimizer(i), state_of(state_.module, *state_.optimizers[i]));
  for (const auto& [name, tensor] : state_.others) shards.push_back(whole_shard(of_others(name), tensor));
  for (std::size_t i = 0; i < state_.generators.size(); ++i)
    shards.push_back(whole_shard(text(of_generators_of(context_.rank()), i), state_of(state_.generators[i])));
  return shards;
}

void LoopCheckpoints::save(std::int64_t step) {
  require(step > 0, "a checkpoint is of a step from 1 on, found ", step);
  const Shards mine = shards_to_save();
  SaveShares shares(context_.world(), mine, sees_folder_);
  save_together(context_.world(), shares.next_part(mine, {.step = step}), folder_, keep_);
}

std::int64_t LoopCheckpoints::restore() {
  const auto found = find_latest_checkpoint(context_.world(), folder_, sees_folder_, context_.log());
  if (!found) return 0;
  const std::vector<Held> held = held_by(context_.world(), found->folder);
  check_same_module(held, state_.module, found->folder);
  Shards shards;
  add(shards, "", state_of(state_.module));
  for (const auto& [name, tensor] : state_.others) shards.push_back(whole_shard(of_others(name), tensor));
  std::vector<TensorMap> of_optimizers;
  for (std::size_t i = 0; i < state_.optimizers.size(); ++i) {
    of_optimizers.push_back(room_for(held, of_optimizer(i), device_of(state_.module)));
    add(shards, of_optimizer(i), of_optimizers.back());
  }
  const auto is_held = [&](const std::string& prefix) {
    return std::ranges::any_of(held, [&](const Held& each) { return each.name.starts_with(prefix); });
  };
  const int ranks = context_.world_size();
  const bool same_ranks = is_held(of_generators_of(ranks - 1)) && !is_held(of_generators_of(ranks));
  TensorMap of_generators;
  if (same_ranks) {
    of_generators = room_for(held, of_generators_of(context_.rank()), at::kCPU);
    add(shards, of_generators_of(context_.rank()), of_generators);
  } else if (context_.is_main()) {
    context_.log().warning(found->folder.string(), " was saved by another number of ranks than ", ranks,
                           ": generators stay as they are");
  }
  load_shards(context_.world(), found->folder, shards, sees_folder_, "tensor");
  comm::on_every_rank(context_.world(), [&] {
    for (std::size_t i = 0; i < state_.optimizers.size(); ++i)
      checkpoint::restore(state_.module, *state_.optimizers[i], of_optimizers[i], found->folder.string());
    for (std::size_t i = 0; i < state_.generators.size(); ++i) {
      const auto state = of_generators.find(text(i));
      if (state != of_generators.end()) checkpoint::restore(state_.generators[i], state->second);
    }
  });
  return found->head.step;
}

}  // namespace trireme::checkpoint
