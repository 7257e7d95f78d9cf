// 1-bit compression of the momentum, for optimizers whose mean square is fixed after a warm-up (1-bit Adam:
// Tang et al., arXiv 2102.02888, algorithm 1; 1-bit LAMB: Li et al., arXiv 2104.06069). During the warm-up,
// gradients are reduced uncompressed. After it, each rank adds its gradient to the common momentum, and the
// mean of the results comes back. Both directions use codec "sign" with error feedback: one residual per
// rank, and one of the mean. The optimizer gets the gradient that changes its momentum to this mean.

#include <ATen/ops/zeros.h>

#include "trireme/base/error.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/parallel/data/internal/encoded_sum.h"

namespace trireme::parallel {
namespace {

class OneBitHook final : public CompressingHook {
 public:
  explicit OneBitHook(const CompressionOptions& options)
      : CompressingHook(options), codec_(*compress::codec("sign")) {
    require(options.momentum >= 0 && options.momentum < 1,
            "the momentum of \"one-bit\" must be at least 0 and below 1; found ", options.momentum);
    require(
        options.warmup_steps >= 1,
        "\"one-bit\" needs warm-up steps, in which the mean square of gradients is measured: 15 to 25 % of "
        "all steps; found ",
        options.warmup_steps);
  }

  void attach_optimizer(const std::map<std::string, at::Tensor>& state) override {
    for (auto& [name, kept] : kept_) {
      const auto find = [&, &name = name](const char* kind) {
        const auto found = state.find(text(kind, "/", name));
        require(found != state.end() && !found->second.is_meta(), "compression \"one-bit\" needs ", kind,
                " of '", name,
                "' from the optimizer, in memory: choose adam, adamw or lamb, and leave offload.optimizer "
                "out");
        return found->second;
      };
      kept.momentum = find("exp_avg");
      kept.mean_square = find("exp_avg_sq");
      kept.updates = find("step");
    }
  }

  HookState state() override {
    HookState state;
    for (auto& [name, kept] : kept_) {
      state.own.emplace_back("residual/" + name, kept.residual);
      state.pieces.push_back({.name = "sums_residual/" + name,
                              .tensor = kept.sums_residual,
                              .begin = kept.piece.begin,
                              .numel = kept.residual.numel()});
    }
    return state;
  }
  /// The optimizer may have been restored too.
  void restored() override {
    for (auto& [name, kept] : kept_) kept.has_begun = false;
  }
  std::string describe() const override {
    return text(CompressingHook::describe(), ", momentum ", options().momentum);
  }

 private:
  /// State of a parameter that is kept between steps.
  struct Kept {
    at::Tensor residual, sums_residual;
    PieceOfRank piece = {};                     ///< of the sum: this rank encodes it
    at::Tensor momentum, mean_square, updates;  ///< those of the optimizer
    mutable bool has_begun = false;             ///< the warm-up has ended: no more read from the optimizer
  };

  bool takes(std::int64_t /*rows*/, std::int64_t /*columns*/) const override { return true; }
  void add(const comm::Group& group, const Taken& parameter) override {
    Kept& kept = kept_[parameter.name];
    const std::int64_t numel = parameter.rows * parameter.columns;
    kept.piece = piece_of_rank(numel, group.rank(), group.size());
    kept.residual = at::zeros({numel}, parameter.like);
    kept.sums_residual = at::zeros({kept.piece.numel}, parameter.like);
    for (const at::Tensor& each : {kept.residual, kept.sums_residual}) count_as(MemoryKind::kOptimizer, each);
  }
  bool is_due(const std::string& name) const override {
    const Kept& kept = kept_.at(name);
    require(kept.updates.defined(),
            "compression \"one-bit\" compresses the optimizer's momentum: call "
            "attach_optimizer() with its state before the first step");
    if (!kept.has_begun)
      kept.has_begun = kept.updates.item<float>() >= static_cast<float>(options().warmup_steps);
    return kept.has_begun;
  }
  std::function<void()> reduce(comm::Group& group, std::vector<CompressedPart> parts,
                               ReduceScale scale) override;

  const compress::Codec& codec_;
  std::map<std::string, Kept> kept_;
};

/// Elements in memory order, which equals the gradient's.
at::Tensor flat_on(c10::Device device, const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1}).to(device);
}

std::function<void()> OneBitHook::reduce(comm::Group& group, std::vector<CompressedPart> parts,
                                         ReduceScale scale) {
  const double beta = options().momentum;
  const bool in_mean = scale == ReduceScale::kMean;
  std::vector<Summand> summands;
  std::vector<at::Tensor> momenta;
  for (CompressedPart& part : parts) {
    Kept& kept = kept_.at(part.name);
    momenta.push_back(flat_on(part.values.device(), kept.momentum));
    // For a sum, each rank adds its share of the momentum.
    part.values.mul_(1 - beta).add_(momenta.back(), in_mean ? beta : beta / group.size());
    summands.push_back({.name = part.name,
                        .values = part.values,
                        .finite = part.finite,
                        .how = {},
                        .residual = kept.residual,
                        .sums_residual = kept.sums_residual,
                        .mask = flat_on(part.values.device(), kept.mean_square).ne(0).to(at::kFloat)});
  }
  return [wait = start_sums(group, codec_, std::move(summands)), momenta = std::move(momenta), beta, in_mean,
          num_ranks = group.size()] {
    const std::vector<Summand> sums = wait();
    for (std::size_t i = 0; i < sums.size(); ++i) {
      at::Tensor values = sums[i].values;
      if (in_mean) values.div_(num_ranks);
      values.sub_(momenta[i], beta).div_(1 - beta);
    }
  };
}

}  // namespace

std::shared_ptr<CommHook> make_one_bit_hook(const CompressionOptions& options) {
  return std::make_shared<OneBitHook>(options);
}

}  // namespace trireme::parallel
