#include "trireme/optim/muon.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/optim/adam.h"
#include "trireme/optim/norms.h"
#include "trireme/optim/tensor_parts.h"

namespace trireme::optim {
namespace {

constexpr int kSteps = 5;
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr double kMinNorm = 1e-7;

/// Newton-Schulz steps move the singular values of the matrix towards 1.
at::Tensor orthogonalised(const at::Tensor& matrix) {
  const bool tall = matrix.size(0) > matrix.size(1);  // the product of the shorter side costs less
  at::Tensor x = tall ? matrix.t() : matrix;
  x = x / norms_of({x}).front().clamp_min(kMinNorm);
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor a = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(a, a, a, kB, kC), x, kA);
  }
  return tall ? x.t() : x;
}

/// Two optimizers with disjoint parameters.
class Split : public Optimizer {
 public:
  Split(GroupedOptimizer first, GroupedOptimizer second, double rate_of_second)
      : Optimizer(first.lr()),
        first_(std::move(first)),
        second_(std::move(second)),
        rate_of_second_(rate_of_second) {}
  std::map<std::string, at::Tensor> state() override {
    std::map<std::string, at::Tensor> result = first_.state();
    result.merge(second_.state());
    return result;
  }

 protected:
  void update(double lr) override {
    first_.set_lr(lr);
    second_.set_lr(lr * rate_of_second_);  // both rates are checked before either optimizer updates
    first_.step();
    second_.step();
  }

 private:
  GroupedOptimizer first_, second_;
  double rate_of_second_;
};

bool is_spared(const OptimizerOptions& options, const std::string& name) {
  return std::any_of(options.muon_spares.begin(), options.muon_spares.end(),
                     [&](const std::string& part) { return name.find(part) != std::string::npos; });
}

}  // namespace

Muon::Muon(const OptimizerOptions& options)
    : momentum_(options.momentum.value()),
      nesterov_(options.nesterov.value()),
      as_adamw_(options.muon_scale == "match_rms_adamw") {
  require_fraction(options, "momentum", momentum_);
  const std::vector<std::string> names = muon_scale_names();
  require(std::find(names.begin(), names.end(), options.muon_scale) != names.end(), "unknown muon_scale '",
          options.muon_scale, "'", suggest(options.muon_scale, names));
}

std::vector<StateTensor> Muon::states() const { return {{.name = "momentum"}}; }

/// PyTorch's adjust_lr_fn of the same names, for a tensor with these sizes.
double Muon::scale_of(at::IntArrayRef sizes) const {
  const auto rows = static_cast<double>(sizes[0]);
  const auto columns = static_cast<double>(c10::multiply_integers(sizes.slice(1)));
  return as_adamw_ ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns));
}

void Muon::update(UpdateLists& lists, const GroupSettings& group, double lr) const {
  const TensorVector& momentum = lists.states[0];
  at::_foreach_lerp_(momentum, lists.gradients, 1 - momentum_);
  const TensorVector updates = nesterov_ ? at::_foreach_lerp(lists.gradients, momentum, momentum_) : momentum;
  if (group.weight_decay != 0) at::_foreach_mul_(lists.values, 1 - lr * group.weight_decay);
  for (std::size_t i = 0; i < updates.size(); ++i) {
    if (lists.values[i].numel() > 0) update_one(lists, i, updates[i], lr);
  }
}

/// Permuted rows or columns, or rows and columns of zeros, do not change the other results. So parts are
/// joined as they are.
void Muon::update_one(const UpdateLists& lists, std::size_t i, const at::Tensor& update, double lr) const {
  const at::Tensor& value = lists.values[i];
  const PartOfTensor* part = lists.parts.empty() ? nullptr : lists.parts[i];
  const at::ScalarType type = value.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor whole = part != nullptr ? lists.others->join(update, *part) : update;
  at::Tensor direction = orthogonalised(whole.flatten(1).to(type)).reshape(whole.sizes());
  if (part != nullptr) {
    const auto before = part->lengths.begin() + part->rank;
    direction =
        direction.narrow(part->dim, std::accumulate(part->lengths.begin(), before, std::int64_t{0}), *before);
  }
  const double scale = scale_of(part != nullptr ? at::IntArrayRef(part->whole_sizes) : value.sizes());
  value.add_(direction.to(value.scalar_type()), -lr * scale);
}

std::unique_ptr<Optimizer> make_muon(const OptimizerOptions& options, NamedTensors parameters,
                                     const Surroundings& surroundings) {
  require_not_negative(options, "muon_adamw_rate", options.muon_adamw_rate);
  for (const std::string& part : options.muon_spares)
    require(!part.empty(), "an empty text in muon_spares is in every name: leave it out, or take adamw");
  const auto rest = std::stable_partition(parameters.begin(), parameters.end(), [&](const auto& item) {
    return item.second.dim() > 1 && !is_spared(options, item.first);
  });
  return std::make_unique<Split>(
      GroupedOptimizer(std::make_unique<Muon>(options), options, {parameters.begin(), rest}, surroundings),
      GroupedOptimizer(std::make_unique<Adam>(options, Adam::WeightDecay::kDecoupled), options,
                       {rest, parameters.end()}, surroundings),
      options.muon_adamw_rate);
}

std::vector<std::string> muon_scale_names() { return {"original", "match_rms_adamw"}; }

}  // namespace trireme::optim
