#include "trireme/parallel/zero/internal/sharding_hook.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/compress/nearest.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/parallel/data/internal/compressing_hook.h"
#include "trireme/parallel/data/internal/hosts_hook.h"
#include "trireme/parallel/zero/shard_hook.h"

namespace trireme::parallel {
namespace {

/// Compressions of whole gradients; codecs encode runs of them.
bool looks_at_whole_gradients(const std::string& compression) {
  const std::vector<std::string> known = shard_hook_names(), codecs = compress::codec_names();
  require(
      std::ranges::find(known, compression) != known.end(), "gradient compression \"", compression,
      "\" needs the whole momentum on each rank, and that is sharded; what can be had: ", join(known, ", "));
  return std::ranges::find(codecs, compression) == codecs.end();
}

/// If gradients are encoded in runs, each rank also compresses parameters that stay whole by itself, with its
/// own residuals.
std::shared_ptr<CommHook> hook_for_whole(CompressionOptions options) {
  if (!looks_at_whole_gradients(options.name)) options.scope = "all";
  require(options.clip_norm == 0,
          "local clipping needs the norm of all gradients before the first is sent, and sharded "
          "ones are sent as they are computed; found a clip_norm of ",
          options.clip_norm);
  return make_comm_hook(options);
}

}  // namespace

ShardingHook::ShardingHook(const CompressionOptions& options, const std::string& weights)
    : options_(options),
      reduces_whole_(looks_at_whole_gradients(options.name)),
      codec_(reduces_whole_ ? nullptr : compress::codec(options.name)),
      weights_(compress::nearest_codec(weights)),
      weights_name_(weights),
      whole_(hook_for_whole(options)) {}

HookState ShardingHook::state() {
  HookState state = whole_->state();
  for (const auto& [name, kept] : kept_) {
    state.common.emplace_back("draws/" + name, kept.draws);
    if (kept.residual.defined()) state.own.emplace_back("residual/" + name, kept.residual);
  }
  return state;
}

/// After a change of the layout, a rank may have residuals of runs that another rank of its host encodes now.
void ShardingHook::restored() {
  if (!hosts_ || !hosts_->inside) return;
  for (const auto& [name, kept] : kept_) {
    if (!kept.residual.defined()) continue;
    for (const RunOfPlace& run : kept.runs) {
      at::Tensor values = kept.residual.narrow(0, run.begin, run.numel);
      hosts_->inside->reduce(values, run.place);
      if (run.place != hosts_->inside->rank()) values.zero_();
    }
  }
}

const comm::HostGroups* ShardingHook::hosts_of(const comm::Group& group) {
  if (group_name_.empty()) {
    group_name_ = group.name();
    const CompressionScope scope = compression_scope_of(options_.scope);
    const int hosts = comm::num_hosts(group);
    const bool has_several = hosts > 1 && hosts < group.size();
    if (scope == CompressionScope::kHosts || (scope == CompressionScope::kAuto && has_several))
      hosts_ = comm::make_host_groups(group);
    const bool are_alike = !hosts_ || hosts_->lanes * hosts_->num_hosts == group.size();
    require(are_alike || scope == CompressionScope::kAuto,
            "sharded gradients need hosts with equally many ranks, and these have different "
            "numbers of them: set the scope of the compression to \"auto\" or \"all\"");
    if (!are_alike) hosts_.reset();
  }
  require(group.name() == group_name_, "what is left out of gradients of group '", group_name_,
          "' is kept here, and these are of group '", group.name(), "': make another make_shard_hook()");
  return hosts_ ? &*hosts_ : nullptr;
}

std::string ShardingHook::describe() const {
  if (reduces_whole_) return text(whole_->describe(), ", for shards, weights ", weights_name_);
  return text(options_.name, " of shards, fraction ", options_.fraction, ", warm-up ", options_.warmup_steps,
              ", least size ", options_.min_numel, ", seed ", options_.seed, ", scope ", options_.scope,
              ", weights ", weights_name_);
}

void ShardingHook::add(const std::string& name, const at::Tensor& parameter) {
  require_f32(options_.name, {{name, parameter}});
  const auto [place, is_new] = kept_.try_emplace(name);
  require(is_new, kept_already(options_.name, name));
  Kept& kept = place->second;
  kept.draws = at::zeros({1}, at::kLong);
  if (!codec_->leaves_out()) return;
  kept.residual = at::zeros({parameter.numel()}, at::TensorOptions(at::kFloat).device(parameter.device()));
  count_as(MemoryKind::kOptimizer, kept.residual);
}

/// Warm-up as for gradients of replicas: Lin et al., ICLR 2018, section 3.3.
double ShardingHook::fraction_at(std::int64_t reduction) const {
  constexpr std::int64_t kLevels = 4;
  if (reduction >= options_.warmup_steps) return options_.fraction;
  const std::int64_t level = reduction * kLevels / options_.warmup_steps;
  return std::max(options_.fraction, std::pow(0.25, static_cast<double>(1 + level)));
}

compress::Codec::Options ShardingHook::next(const std::string& name, int rank) {
  std::int64_t& draws = *kept_.at(name).draws.data_ptr<std::int64_t>();
  Random random(options_.seed, Random::key_of(name), draws, rank);
  const compress::Codec::Options how{.fraction = fraction_at(draws), .seed = random.bits()};
  ++draws;
  return how;
}

std::shared_ptr<CommHook> make_shard_hook(const CompressionOptions& compression, const std::string& weights) {
  return std::make_shared<ShardingHook>(compression, weights);
}

std::vector<std::string> shard_weight_names() { return compress::nearest_codec_names(); }

std::vector<std::string> shard_hook_names() {
  std::vector<std::string> names = comm_hook_names();
  std::erase_if(names, compresses_momentum);
  return names;
}

}  // namespace trireme::parallel
