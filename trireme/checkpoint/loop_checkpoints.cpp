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
#include "trireme/optim/wrapped_parameter.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string of_optimizer(std::size_t number) { return text(kOptimizerPrefix, number, "/"); }
const std::string kOfOthers = text(kOptimizerPrefix, "others/");
const std::string kOfGenerators = text(kOptimizerPrefix, "generator/");
const std::string kOfSchedulers = text(kOptimizerPrefix, "scheduler/");
std::string of_scheduler(std::size_t number) { return text(kOfSchedulers, number, "/"); }
std::string of_generators_of(int rank) { return text(kOfGenerators, rank, "/"); }

/// Names, types and sizes, for ranks that have other tensors or see no checkpoint.
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

/// What told() has told, as tensors without memory.
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

/// What a checkpoint holds, as tensors without memory; the same on all ranks.
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

/// Room for what a checkpoint holds under a prefix, by the rest of the names.
TensorMap room_for(const TensorMap& held, const std::string& prefix, at::Device device) {
  TensorMap room;
  for (const auto& [name, tensor] : held) {
    if (!name.starts_with(prefix)) continue;
    const bool is_number = tensor.dim() == 0;  // steps and rates stay with the host
    const at::TensorOptions options(tensor.scalar_type());
    room.emplace(name.substr(prefix.size()),
                 at::empty(tensor.sizes(), options.device(is_number ? at::kCPU : device)));
  }
  return room;
}

void add(Shards& shards, const std::string& prefix, const TensorMap& tensors) {
  for (const auto& [name, tensor] : tensors) shards.push_back(whole_shard(prefix + name, tensor));
}

/// Of a module whose parameters a Pipeline or FullyShardedDataParallel holds, this rank has a part alone.
void require_whole(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    const auto wrapper = optim::wrapper_of(item.value());
    require(
        wrapper == nullptr, "LoopState::module has a parameter '", item.key(), "' that belongs to a ",
        wrapper ? wrapper->name : "", ", of which this rank has a part: the rest of the module is not what ",
        "was trained. Use LoopCheckpoints with a ShardedLoopState: train::sharded_loop(sharded, optimizer) ",
        "makes that of a FullyShardedDataParallel; for a Pipeline `shards` returns a whole_shard() of each ",
        "of parameters() and of the optimizer's state, and `filled` calls weights_changed()");
  }
}

/// Of tensors that are saved as the first rank has them.
void require_same_everywhere(const TensorMap& others) {
  for (const auto& [name, tensor] : others) {
    const auto wrapper = optim::wrapper_of(tensor);
    require(wrapper == nullptr, "others has a tensor '", name, "' that belongs to a ",
            wrapper ? wrapper->name : "", ", of which this rank has a part; expected the same values on all ",
            "ranks: return a Shard of it from ShardedLoopState::shards, as train::sharded_loop() does for a ",
            "FullyShardedDataParallel, and whole_shard() for a Pipeline");
  }
}

at::Device device_of(const torch::nn::Module& module) {
  const std::vector<at::Tensor> parameters = module.parameters();
  return parameters.empty() ? at::Device(at::kCPU) : parameters.front().device();
}

}  // namespace

class LoopCheckpoints::Content {
 public:
  virtual ~Content() = default;
  /// Of this rank; may throw on one rank alone.
  virtual Shards to_save() = 0;
  /// What is to be filled from a checkpoint that holds this. Collective; throws on every rank.
  virtual Shards to_fill(comm::Group& group, const TensorMap& held, const std::string& source) = 0;
  /// It has been filled. Collective; throws on every rank.
  virtual void filled(comm::Group& group, const std::string& source) = 0;
};

namespace {

class Replicated final : public LoopCheckpoints::Content {
 public:
  Replicated(torch::nn::Module& module, std::vector<torch::optim::Optimizer*> optimizers)
      : module_(module), optimizers_(std::move(optimizers)) {
    require_whole(module_);
  }

  /// Buffers are those of the first replica; the other tensors are equal on all ranks.
  Shards to_save() override {
    require_whole(module_);
    Shards shards;
    for (const auto& [name, tensor] : state_of(module_)) {
      shards.push_back(whole_shard(name, tensor));
      if (!module_.named_parameters().contains(name)) shards.back().replicas = Replicas::kFirstCounts;
    }
    for (std::size_t i = 0; i < optimizers_.size(); ++i)
      add(shards, of_optimizer(i), state_of(module_, *optimizers_[i]));
    return shards;
  }

  Shards to_fill(comm::Group& group, const TensorMap& held, const std::string& source) override {
    Shards shards;
    rooms_.clear();
    comm::on_every_rank(group, [&] {
      require_whole(module_);
      TensorMap weights = held;
      std::erase_if(weights, [](const auto& item) { return item.first.starts_with(kOptimizerPrefix); });
      check_same_tensors(weights, state_of(module_), source);
      add(shards, "", state_of(module_));
      for (std::size_t i = 0; i < optimizers_.size(); ++i) {
        rooms_.push_back(room_for(held, of_optimizer(i), device_of(module_)));
        if (rooms_.back().empty())
          throw DataError(
              text(source, " holds nothing of this loop's optimizer ", i,
                   ": it is of a loop with fewer of them, of one over shards, or of a run; restore "
                   "it with what saved it"));
        add(shards, of_optimizer(i), rooms_.back());
      }
    });
    return shards;
  }

  void filled(comm::Group& group, const std::string& source) override {
    comm::on_every_rank(group, [&] {
      for (std::size_t i = 0; i < optimizers_.size(); ++i)
        checkpoint::restore(module_, *optimizers_[i], rooms_[i], source);
    });
    rooms_.clear();
  }

 private:
  torch::nn::Module& module_;
  const std::vector<torch::optim::Optimizer*> optimizers_;
  std::vector<TensorMap> rooms_;  ///< of each optimizer's state, which it then keeps
};

class Sharded final : public LoopCheckpoints::Content {
 public:
  explicit Sharded(const ShardedLoopState& state) : shards_(state.shards), filled_(state.filled) {
    require(static_cast<bool>(shards_), "ShardedLoopState::shards is empty; train::sharded_loop() makes one");
  }

  Shards to_save() override { return shards_(); }

  /// A name of which no rank has a part would be lost without a word: it is another optimizer's or model's.
  Shards to_fill(comm::Group& group, const TensorMap& held, const std::string& source) override {
    Shards mine;
    TensorMap names, expected, found = held;
    comm::on_every_rank(group, [&] {
      mine = shards_();
      for (const Shard& shard : mine)
        names.emplace(shard.name, without_memory(shard.global_sizes, shard.tensor.scalar_type()));
    });
    for (const std::string& lines : group.all_gather_text(told(names))) expected.merge(heard(lines));
    std::erase_if(found, [](const auto& item) {
      const std::string& name = item.first;
      return name.starts_with(kOfGenerators) || name.starts_with(kOfOthers) ||
             name.starts_with(kOfSchedulers);
    });
    check_same_tensors(found, expected, source);
    return mine;
  }

  void filled(comm::Group&, const std::string&) override {
    if (filled_) filled_();
  }

 private:
  const std::function<Shards()> shards_;
  const std::function<void()> filled_;
};

}  // namespace

LoopCheckpoints::LoopCheckpoints(comm::Context& context, fs::path folder, LoopState state, int keep)
    : LoopCheckpoints(context, std::move(folder),
                      std::make_unique<Replicated>(state.module, std::move(state.optimizers)),
                      std::move(state), keep) {}

LoopCheckpoints::LoopCheckpoints(comm::Context& context, fs::path folder, ShardedLoopState state, int keep)
    : LoopCheckpoints(context, std::move(folder), std::make_unique<Sharded>(state), std::move(state), keep) {}

template <class State>
LoopCheckpoints::LoopCheckpoints(comm::Context& context, fs::path folder, std::unique_ptr<Content> content,
                                 State&& state, int keep)
    : context_(context),
      folder_(std::move(folder)),
      content_(std::move(content)),
      generators_(std::move(state.generators)),
      others_(std::move(state.others)),
      schedulers_(std::move(state.schedulers)),
      keep_(keep) {
  require(keep_ >= 1, "keep is ", keep_, "; at least 1 checkpoint stays");
  require_same_everywhere(others_);
  if (generators_.empty()) generators_ = {at::detail::getDefaultCPUGenerator()};
  const fs::path witness = folder_ / ".ranks";
  comm::on_every_rank(context_.world(), [&] {
    if (!context_.is_main()) return;
    make_folder(folder_);
    write_file_atomic(witness, text(std::random_device()(), "-", std::random_device()(), "\n"));
  });
  sees_folder_ = ranks_that_see(context_.world(), witness);
}

LoopCheckpoints::~LoopCheckpoints() = default;

Shards LoopCheckpoints::shards_to_save() const {
  Shards shards = content_->to_save();
  require_same_everywhere(others_);
  add(shards, kOfOthers, others_);
  for (std::size_t i = 0; i < schedulers_.size(); ++i) add(shards, of_scheduler(i), schedulers_[i].state());
  for (std::size_t i = 0; i < generators_.size(); ++i)
    shards.push_back(whole_shard(text(of_generators_of(context_.rank()), i), state_of(generators_[i])));
  return shards;
}

void LoopCheckpoints::save(std::int64_t step) {
  require(step > 0, "a checkpoint is of a step from 1 on, found ", step);
  Shards mine;
  comm::on_every_rank(context_.world(), [&] { mine = shards_to_save(); });
  SaveShares shares(context_.world(), mine, sees_folder_);
  save_together(context_.world(), shares.next_part(mine, {.step = step}), folder_, keep_);
}

std::vector<TensorMap> LoopCheckpoints::rooms_of_schedulers(const TensorMap& held,
                                                            const std::string& source) const {
  std::vector<TensorMap> rooms;
  for (std::size_t i = 0; i < schedulers_.size(); ++i) {
    rooms.push_back(room_for(held, of_scheduler(i), at::kCPU));
    if (rooms.back().empty() && context_.is_main())
      context_.log().warning(source, " holds nothing of learning-rate scheduler ", i,
                             ": it stays as it is, at its own first step");
  }
  const bool has_more = !room_for(held, of_scheduler(schedulers_.size()), at::kCPU).empty();
  if (has_more && context_.is_main())
    context_.log().warning(source, " holds more than the ", schedulers_.size(),
                           " learning-rate schedulers of this loop (LoopState::schedulers): the rest is not "
                           "restored");
  return rooms;
}

std::int64_t LoopCheckpoints::restore() {
  const auto found = find_latest_checkpoint(context_.world(), folder_, sees_folder_, context_.log());
  if (!found) return 0;
  const TensorMap held = held_by(context_.world(), found->folder);
  Shards shards = content_->to_fill(context_.world(), held, found->folder.string());
  add(shards, kOfOthers, others_);
  const std::vector<TensorMap> of_schedulers = rooms_of_schedulers(held, found->folder.string());
  for (std::size_t i = 0; i < schedulers_.size(); ++i) add(shards, of_scheduler(i), of_schedulers[i]);
  const auto is_held = [&](const std::string& prefix) {
    return std::ranges::any_of(held, [&](const auto& each) { return each.first.starts_with(prefix); });
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
  content_->filled(context_.world(), found->folder.string());
  comm::on_every_rank(context_.world(), [&] {
    for (std::size_t i = 0; i < schedulers_.size(); ++i) {
      if (!of_schedulers[i].empty()) schedulers_[i].restore(of_schedulers[i]);
    }
    for (std::size_t i = 0; i < generators_.size(); ++i) {
      const auto state = of_generators.find(text(i));
      if (state != of_generators.end()) checkpoint::restore(generators_[i], state->second);
    }
  });
  return found->head.step;
}

}  // namespace trireme::checkpoint
