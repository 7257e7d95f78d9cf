#include "trireme/parallel/tensor/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>

#include "trireme/base/error.h"
#include "trireme/parallel/tensor/internal/vocabulary.h"

namespace trireme::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Targets {
  OwnTokens own;       ///< one for each row of logits; `outside` also if this rank does not have the target
  at::Tensor ignored;  ///< bool
};

at::Tensor greatest(const at::Tensor& rows, comm::Group group) {
  at::Tensor greatest =
      rows.size(1) > 0 ? at::amax(rows, 1)
                       : at::full({rows.size(0)}, -std::numeric_limits<double>::infinity(), rows.options());
  if (group.size() > 1 && greatest.numel() > 0) group.all_reduce(greatest, comm::ReduceOp::kMax);
  return greatest;
}

/// The logit of each target if this rank has it, else 0.
at::Tensor picked(const at::Tensor& rows, const OwnTokens& own) {
  if (rows.size(1) == 0) return at::zeros({rows.size(0)}, rows.options());
  return rows.gather(1, own.places.unsqueeze(1)).squeeze(1).masked_fill(own.outside, 0);
}

class CrossEntropy : public torch::autograd::Function<CrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const Targets& targets,
                            comm::Group group, const VocabularyLossOptions& options) {
    const at::ScalarType type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor rows = logits.reshape({targets.ignored.numel(), logits.size(-1)}).to(type);
    at::Tensor values = rows - greatest(rows, group).unsqueeze(1);
    std::vector<at::Tensor> terms = {picked(values, targets.own)};
    if (options.label_smoothing != 0) terms.push_back(values.sum(1));
    terms.push_back(values.exp_().sum(1));
    at::Tensor sums = at::stack(terms);
    if (group.size() > 1 && sums.numel() > 0) group.all_reduce(sums);
    const at::Tensor& sum_of_powers = sums[-1];
    const at::Tensor log_of_sum = sum_of_powers.log();
    at::Tensor losses = (log_of_sum - sums[0]) * (1 - options.label_smoothing);
    if (options.label_smoothing != 0)
      losses += (log_of_sum - sums[1] / options.vocabulary) * options.label_smoothing;
    context->save_for_backward(
        {values.div_(sum_of_powers.unsqueeze(1)), targets.own.places, targets.own.outside, targets.ignored});
    context->saved_data["sizes"] = logits.sizes().vec();
    context->saved_data["type"] = static_cast<std::int64_t>(logits.scalar_type());
    context->saved_data["smoothing"] = options.label_smoothing;
    context->saved_data["vocabulary"] = options.vocabulary;
    return losses.masked_fill(targets.ignored, 0).sum();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require(!at::GradMode::is_enabled(),
            "the gradient of vocabulary_cross_entropy cannot be derived once more (create_graph)");
    const variable_list saved = context->get_saved_variables();
    auto& data = context->saved_data;
    const at::Tensor &probabilities = saved[0], &places = saved[1], &outside = saved[2], &ignored = saved[3];
    const double smoothing = data["smoothing"].toDouble();
    at::Tensor gradient = probabilities - smoothing / static_cast<double>(data["vocabulary"].toInt());
    if (gradient.size(1) > 0) {
      const at::Tensor ones = outside.logical_not().to(gradient.scalar_type()).unsqueeze(1);
      gradient.scatter_add_(1, places.unsqueeze(1), ones * (smoothing - 1));
    }
    gradient.masked_fill_(ignored.unsqueeze(1), 0).mul_(gradients[0]);
    const auto type = static_cast<at::ScalarType>(data["type"].toInt());
    return {gradient.to(type).reshape(data["sizes"].toIntVector()), {}, {}, {}};
  }
};

at::Tensor ignored_among(const at::Tensor& targets, const VocabularyLossOptions& options) {
  at::Tensor ignored = at::zeros(targets.sizes(), targets.options().dtype(at::kBool));
  for (const std::int64_t one : options.ignored_classes) ignored = ignored.logical_or(targets.eq(one));
  return ignored;
}

}  // namespace

at::Tensor vocabulary_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                    const comm::Group& group, const VocabularyLossOptions& options) {
  const DimCut cut{.size = options.vocabulary};
  const Range own = cut.ranges(group.rank(), group.size())[0];
  require(logits.is_floating_point() && logits.dim() >= 1 && logits.size(-1) == own.size &&
              logits.sizes().slice(0, static_cast<std::size_t>(logits.dim() - 1)) == targets.sizes(),
          "logits are ", logits.scalar_type(), " of shape ", logits.sizes(), " for targets of shape ",
          targets.sizes(), "; of a vocabulary of ", options.vocabulary, " rank ", group.rank(), " of the ",
          group.size(), " of group '", group.name(), "' has ", own.size,
          ": expected floating-point numbers in the shape of the targets, and that as the last dim");
  require(options.label_smoothing >= 0 && options.label_smoothing <= 1, "label_smoothing is ",
          options.label_smoothing, "; expected 0 to 1");
  const at::Tensor flat = targets.reshape({-1});
  const at::Tensor ignored = ignored_among(flat, options);
  const at::Tensor classes = flat.masked_fill(ignored, 0);
  check_tokens(classes, options.vocabulary, "target");
  return CrossEntropy::apply(logits, Targets{.own = own_tokens(classes, own), .ignored = ignored}, group,
                             options);
}

}  // namespace trireme::parallel
