#include "trireme/parallel/zero/internal/sharding_hook.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/compress/nearest.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/parallel/data/internal/compressing_hook.h"
#include "trireme/parallel/zero/shard_hook.h"

namespace trireme::parallel {
namespace {

constexpr std::array<std::string_view, 12> kNames = {"none",     "bf16",      "fp16", "int8",
                                                     "qsgd",     "ternary",   "sign", "top-k",
                                                     "random-k", "threshold", "dgc",  "power-sgd"};

/// Those that look at whole gradients.
constexpr std::array<std::string_view, 3> kOfWhole = {"threshold", "dgc", "power-sgd"};

/// Where there are hosts, each rank encodes its runs nevertheless.
std::shared_ptr<CommHook> hook_for_whole(CompressionOptions options) {
  if (!looks_at_whole_gradients(options.name)) options.scope = "all";
  require(options.clip_norm == 0,
          "local clipping needs the norm of all gradients before the first is sent, and those that are "
          "shared out leave as they come; found a clip_norm of ",
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

std::string ShardingHook::describe() const {
  if (reduces_whole_) return text(whole_->describe(), ", for shards, weights ", weights_name_);
  return text(options_.name, " of shards, fraction ", options_.fraction, ", warm-up ", options_.warmup_steps,
              ", least size ", options_.least_numel, ", seed ", options_.seed, ", weights ", weights_name_);
}

void ShardingHook::add(const std::string& name, const at::Tensor& parameter) {
  require_f32(options_.name, {{name, parameter}});
  const auto [place, is_new] = kept_.try_emplace(name);
  require(is_new, kept_already(options_.name, name));
  Kept& kept = place->second;
  kept.draws = at::zeros({1}, at::kLong);
  if (!codec_->leaves_out()) return;
  kept.residual = at::zeros({parameter.numel()}, at::kFloat);
  count_as(MemoryKind::kOptimizer, kept.residual);
}

/// As for gradients of replicas: Lin et al., ICLR 2018, section 3.3.
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

bool looks_at_whole_gradients(const std::string& compression) {
  require(std::ranges::find(kNames, compression) != kNames.end(), "gradient compression \"", compression,
          "\" needs the whole momentum on each rank, and that is shared out; what can be had: ",
          join(shard_hook_names(), ", "));
  return std::ranges::find(kOfWhole, compression) != kOfWhole.end();
}

std::vector<std::string> shard_weight_names() { return compress::nearest_codec_names(); }

std::vector<std::string> shard_hook_names() { return {kNames.begin(), kNames.end()}; }

}  // namespace trireme::parallel
