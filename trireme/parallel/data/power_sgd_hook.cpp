// PowerSGD: a matrix-shaped gradient is sent as two low-rank factors (Vogels, Karimireddy and Jaggi, NeurIPS
// 2019, algorithm 1). Each step is one power iteration, which starts from the factor of the previous step
// (warm start). The approximation error is added to the next gradient (error feedback). The optimizer's
// momentum acts on the reduced gradient (post-compression momentum).

#include <ATen/ops/zeros.h>

#include "trireme/base/random.h"
#include "trireme/compress/low_rank.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/parallel/data/internal/compressing_hook.h"
#include "trireme/parallel/data/internal/low_rank_tensors.h"
#include "trireme/parallel/data/internal/spans.h"

namespace trireme::parallel {
namespace {

class PowerSgdHook final : public CompressingHook {
 public:
  using CompressingHook::CompressingHook;

  HookState state() override {
    HookState state;
    for (auto& [name, kept] : kept_) {
      state.common.emplace_back("q/" + name, kept.q);
      state.own.emplace_back("residual/" + name, kept.residual);
    }
    return state;
  }

 private:
  /// State of a parameter that is kept between steps.
  struct Kept {
    at::Tensor residual;  ///< rows x columns
    at::Tensor q;         ///< columns x rank; the factor of the last step, the same on all ranks
  };
  /// A gradient in one step, and its parts of the reduced tensors.
  struct Factors {
    CompressedPart part;
    at::Tensor p, q;
  };

  std::int64_t rank_of(std::int64_t rows, std::int64_t columns) const {
    return std::min({options().rank, rows, columns});
  }
  bool takes(std::int64_t rows, std::int64_t columns) const override {
    return compress::is_worth_it(static_cast<std::size_t>(rows), static_cast<std::size_t>(columns),
                                 static_cast<std::size_t>(rank_of(rows, columns)));
  }
  void add(const comm::Group& /*group*/, const Taken& parameter) override {
    Kept& kept = kept_[parameter.name];
    kept.residual = at::zeros({parameter.rows, parameter.columns}, parameter.like);
    const at::Tensor q =
        at::zeros({parameter.columns, rank_of(parameter.rows, parameter.columns)}, at::kFloat);
    Random random(options().seed, Random::key_of(parameter.name));
    for (float& value : span_of(q)) value = 2 * random.uniform() - 1;
    kept.q = q.to(parameter.like.device());
    count_as(MemoryKind::kOptimizer, kept.residual);
  }
  std::vector<Residual> residuals_of(const std::string& name) override {
    return {{.values = kept_.at(name).residual.view({-1})}};
  }
  std::function<void()> reduce(comm::Group& group, std::vector<CompressedPart> parts,
                               ReduceScale scale) override;
  void finish(const Factors& factors, ReduceScale scale, int num_ranks);

  std::map<std::string, Kept> kept_;
};

std::function<void()> PowerSgdHook::reduce(comm::Group& group, std::vector<CompressedPart> parts,
                                           ReduceScale scale) {
  std::vector<Factors> all;
  std::int64_t p_numel = 0, q_numel = 0;
  for (const CompressedPart& part : parts) {
    const Kept& kept = kept_.at(part.name);
    p_numel += kept.residual.size(0) * kept.q.size(1);
    q_numel += kept.q.numel();
  }
  const std::string of = parts.front().name;
  const at::TensorOptions like = parts.front().values.options();
  at::Tensor p_of_all = room(group, "p " + of, p_numel, like);
  at::Tensor q_of_all = room(group, "q " + of, q_numel, like);
  p_numel = q_numel = 0;
  for (CompressedPart& part : parts) {
    Kept& kept = kept_.at(part.name);
    const std::int64_t rows = kept.residual.size(0), rank = kept.q.size(1);
    Factors factors{.part = std::move(part),
                    .p = p_of_all.narrow(0, p_numel, rows * rank).view({rows, rank}),
                    .q = q_of_all.narrow(0, q_numel, kept.q.numel()).view(kept.q.sizes())};
    p_numel += factors.p.numel();
    q_numel += factors.q.numel();
    const Flag& finite = factors.part.finite;
    finite.change(kept.residual,
                  [&](at::Tensor changed) { changed.add_(factors.part.values.view(kept.residual.sizes())); });
    if (!finite.is_known(false)) multiply(kept.residual, kept.q, factors.p);
    finite.show_in(factors.p);
    all.push_back(std::move(factors));
  }
  count(all_reduce_bytes(group, p_of_all));
  return [this, group, all = std::move(all), p_of_all, q_of_all, scale,
          pending = group.all_reduce_async(p_of_all)]() mutable {
    pending.wait();
    for (Factors& factors : all) {
      orthogonalise(factors.p);
      multiply_turned(kept_.at(factors.part.name).residual, factors.p, factors.q);
    }
    count(all_reduce_bytes(group, q_of_all));
    group.all_reduce(q_of_all, scale == ReduceScale::kMean ? comm::ReduceOp::kAverage : comm::ReduceOp::kSum);
    for (const Factors& factors : all) finish(factors, scale, group.size());
  };
}

void PowerSgdHook::finish(const Factors& factors, ReduceScale scale, int num_ranks) {
  Kept& kept = kept_.at(factors.part.name);
  at::Tensor values = factors.part.values.view(kept.residual.sizes());
  const Flag finite = Flag::is_finite(factors.p) && Flag::is_finite(factors.q);
  (!finite && factors.part.finite).change(kept.residual, [&](at::Tensor changed) { changed.sub_(values); });
  if (!finite.is_known(false)) multiply_transposed(factors.p, factors.q, values);
  finite.change(kept.residual, [&](at::Tensor changed) {
    changed.sub_(values, scale == ReduceScale::kMean ? 1.0 : 1.0 / num_ranks);
  });
  finite.change(kept.q, [&](at::Tensor changed) { changed.copy_(factors.q); });
  finite.show_in(values);
}

}  // namespace

std::shared_ptr<CommHook> make_power_sgd_hook(const CompressionOptions& options) {
  return std::make_shared<PowerSgdHook>(options);
}

}  // namespace trireme::parallel
