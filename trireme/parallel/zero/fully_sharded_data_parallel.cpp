#include "trireme/parallel/zero/fully_sharded_data_parallel.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/model/skips.h"
#include "trireme/optim/norms.h"
#include "trireme/optim/wrapped_parameter.h"
#include "trireme/parallel/data/internal/replicas.h"
#include "trireme/parallel/data/sparse_embeddings.h"
#include "trireme/parallel/tensor/internal/whole_parameters.h"
#include "trireme/parallel/zero/internal/fully_sharded_passes.h"
#include "trireme/parallel/zero/rounded_parameters.h"

namespace trireme::parallel {
namespace {

const FullyShardedOptions& checked(const FullyShardedOptions& options,
                                   const std::vector<model::Layer>& layers) {
  require(options.zero.gathered_stages >= 0,
          "layers that are gathered at a time are a number, or 0 for all, not ",
          options.zero.gathered_stages);
  require(!layers.empty(), "there are no layers to shard");
  return options;
}

/// Names that more than one layer lists.
std::set<std::string> shared_names(const std::vector<model::Layer>& layers) {
  std::set<std::string> seen, shared;
  for (const model::Layer& layer : layers) {
    std::set<std::string> mine;
    for (const auto& [name, parameter] : layer.parameters) mine.insert(name);
    for (const std::string& name : mine) {
      if (!seen.insert(name).second) shared.insert(name);
    }
  }
  return shared;
}

/// Each parameter once, without those that several layers share.
std::vector<at::Tensor> own_parameters(const std::vector<model::Layer>& layers,
                                       const std::set<std::string>& shared) {
  std::set<std::string> seen = shared;
  std::vector<at::Tensor> parameters;
  for (const model::Layer& layer : layers) {
    for (const auto& [name, parameter] : layer.parameters) {
      if (seen.insert(name).second) parameters.push_back(parameter);
    }
  }
  return parameters;
}

/// kNone is the default of ZeroOptions. Callers that set only its other fields mean stage 3.
FullyShardedOptions with_stage(FullyShardedOptions options) {
  if (options.zero.stage == ZeroStage::kNone) options.zero.stage = ZeroStage::kParameters;
  return options;
}

DataParallelOptions when_asked(DataParallelOptions options) {
  options.end = ReductionEnd::kOnRequest;
  return options;
}

double summed_over(comm::Group& group, double value) {
  at::Tensor sum = at::full({1}, value, at::kDouble);
  group.all_reduce(sum);
  return sum.item<double>();
}

}  // namespace

FullyShardedDataParallel::Passes::Passes(comm::Group group, std::vector<model::Layer> layers,
                                         const FullyShardedOptions& options, Log log)
    : group_(std::move(group)),
      shards_(options.shard_groups ? options.shard_groups->shards : group_),
      gathered_(checked(options, layers).zero.gathered_stages),
      carried_(model::carried_skips(layers)),
      watch_(std::move(log)) {
  const std::set<std::string> shared = shared_names(layers);
  const auto buckets = std::make_shared<BucketPool>(shards_, options.zero, own_parameters(layers, shared));
  for (model::Layer& layer : layers) add_unit(std::move(layer), options, buckets, shared);
  add_shared(options, shared);
  for (const Unit& unit : units_) {
    for (const auto& [name, parameter] : unit.layer.parameters)
      known_.insert(parameter.unsafeGetTensorImpl());
    for (const auto& module : unit.layer.modules)
      for (const at::Tensor& parameter : module->parameters()) known_.insert(parameter.unsafeGetTensorImpl());
  }
  for (const auto& [name, parameter] : shared_parameters_) shared_learn_.push_back(parameter.requires_grad());
  for (const Unit& unit : units_) {
    for (const auto& item : unit.weights->parameters()) parameters.push_back(item);
    for (const auto& item : unit.weights->pieces()) pieces.insert(item);
  }
  for (const auto& [name, piece] : parameters) optim::mark_wrapped(piece, wrapper_);
  for (const Unit& unit : units_)
    for (const auto& [name, parameter] : unit.layer.parameters) optim::mark_wrapped(parameter, wrapper_);
  const bool learns =
      std::ranges::any_of(parameters, [](const auto& item) { return item.second.requires_grad(); });
  require(summed_over(group_, learns ? 1 : 0) > 0,
          "no parameter of the layers needs a gradient: there is nothing to train");
}

void FullyShardedDataParallel::Passes::add_unit(model::Layer layer, const FullyShardedOptions& options,
                                                const std::shared_ptr<BucketPool>& buckets,
                                                const std::set<std::string>& shared) {
  for (const auto& module : layer.modules) reject_sparse_embeddings(*module, layer.name);
  Replica own{.parameters = {}, .buffers = layer.buffers};
  for (const auto& item : layer.parameters) {
    const auto has_name = [&](const auto& known) { return known.first == item.first; };
    const bool is_new = std::ranges::none_of(own.parameters, has_name);
    if (is_new && !shared.contains(item.first)) own.parameters.push_back(item);
  }
  for (const auto& item : layer.buffers) buffers.push_back(item);
  const std::optional<comm::Group> everybody = group_;
  const StageWeightsOptions held{
      .stage = static_cast<int>(units_.size()),
      .data = everybody,
      .shard_groups = options.shard_groups,
      .reduction = options.data_parallel,
      .zero = options.zero,
      .buckets = buckets,
      .rounded = options.zero.working_type ? rounded_parameters({layer}) : std::set<std::string>()};
  std::vector<at::Tensor> leaves;
  for (const auto& [name, parameter] : own.parameters) {
    if (parameter.requires_grad()) leaves.push_back(parameter);
  }
  auto weights = std::make_unique<ShardedWeights>(std::move(own), held);
  units_.push_back({.layer = std::move(layer), .weights = std::move(weights), .leaves = std::move(leaves)});
}

void FullyShardedDataParallel::Passes::add_shared(const FullyShardedOptions& options,
                                                  const std::set<std::string>& shared) {
  std::map<std::string, at::Tensor> tensors;
  for (const Unit& unit : units_) {
    for (const auto& [name, parameter] : unit.layer.parameters) {
      if (shared.contains(name) && tensors.emplace(name, parameter).second)
        shared_parameters_.emplace_back(name, parameter);
    }
  }
  parameters = shared_parameters_;
  if (group_.size() > 1) broadcast_tensors(group_, tensors_of(shared_parameters_), /*root=*/0);
  Replica whole{.parameters = shared_parameters_, .buffers = {}};
  std::erase_if(whole.parameters, [](const auto& item) { return !item.second.requires_grad(); });
  if (!whole.parameters.empty()) shared_.emplace(group_, std::move(whole), when_asked(options.data_parallel));
}

/// Parameters that were loaded, converted, unfrozen or added after the wrapping would never be trained.
void FullyShardedDataParallel::Passes::check_modules() const {
  for (const Unit& unit : units_) {
    unit.weights->check();
    for (const auto& module : unit.layer.modules) {
      for (const auto& item : module->named_parameters()) {
        require(known_.contains(item.value().unsafeGetTensorImpl()), "layer '", unit.layer.name,
                "' has a parameter '", item.key(),
                "' that it did not have when it was wrapped: no rank would ",
                "train it; add parameters first, then make the FullyShardedDataParallel and its optimizer");
      }
    }
  }
  for (std::size_t i = 0; i < shared_parameters_.size(); ++i) {
    const auto& [name, parameter] = shared_parameters_[i];
    require(parameter.requires_grad() == shared_learn_[i], "parameter '", name,
            "' has requires_grad = ", parameter.requires_grad(), " and had ",
            static_cast<bool>(shared_learn_[i]),
            " when it was wrapped: make the FullyShardedDataParallel and its optimizer again");
  }
}

void FullyShardedDataParallel::Passes::zero_grad() {
  for (Unit& unit : units_) unit.weights->zero_grad();
  for (const auto& [name, parameter] : shared_parameters_) parameter.mutable_grad().reset();
  without_hook_.clear();
  in_step_ = false;
}

double FullyShardedDataParallel::Passes::clip_grad_norm(double max_norm) {
  const at::NoGradGuard no_grad;
  for (const Unit& unit : units_) require_whole_parameters({unit.layer}, "FullyShardedDataParallel");
  std::vector<at::Tensor> counted;
  for (const auto& [name, parameter] : parameters) {
    const bool is_whole = !pieces.contains(name);
    if (!parameter.grad().defined() || (is_whole && shards_.rank() != 0)) continue;
    counted.push_back(parameter.grad());
  }
  const double norm = std::sqrt(summed_over(shards_, optim::sum_of_squared_norms(counted)));
  optim::clip_to_norm(parameters, norm, max_norm);
  return norm;
}

double FullyShardedDataParallel::Passes::waited_s() const {
  double sum = shared_ ? shared_->statistics().waited_s : 0;
  for (const Unit& unit : units_) sum += unit.weights->waited_s();
  return sum;
}

FullyShardedDataParallel::FullyShardedDataParallel(comm::Context& context, std::vector<model::Layer> layers,
                                                   const FullyShardedOptions& options)
    : passes_(
          std::make_shared<Passes>(context.world(), std::move(layers), with_stage(options), context.log())) {
  passes_->hook_leaves();
}

FullyShardedDataParallel::FullyShardedDataParallel(comm::Group group, std::vector<model::Layer> layers,
                                                   const FullyShardedOptions& options)
    : passes_(std::make_shared<Passes>(group, std::move(layers), with_stage(options),
                                       Log(text("trireme[rank ", group.rank(), "]")))) {
  passes_->hook_leaves();
}

FullyShardedDataParallel::~FullyShardedDataParallel() = default;

FullyShardedDataParallel::NoSync::NoSync(FullyShardedDataParallel& sharded)
    : sharded_(sharded), before_(std::exchange(sharded.passes_->reduces, false)) {}

FullyShardedDataParallel::NoSync::~NoSync() { sharded_.passes_->reduces = before_; }

Fields FullyShardedDataParallel::forward(const Fields& input) { return passes_->forward(input); }
void FullyShardedDataParallel::zero_grad() { passes_->zero_grad(); }
double FullyShardedDataParallel::clip_grad_norm(double max_norm) { return passes_->clip_grad_norm(max_norm); }
const optim::NamedTensors& FullyShardedDataParallel::parameters() const { return passes_->parameters; }
const Pieces& FullyShardedDataParallel::pieces() const { return passes_->pieces; }
const optim::NamedTensors& FullyShardedDataParallel::buffers() const { return passes_->buffers; }
void FullyShardedDataParallel::weights_changed() { passes_->weights_changed(); }
double FullyShardedDataParallel::waited_s() const { return passes_->waited_s(); }

}  // namespace trireme::parallel
