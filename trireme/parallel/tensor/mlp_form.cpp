#include <ATen/ops/relu.h>

#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/model/initialise.h"
#include "trireme/parallel/tensor/internal/shipped_forms.h"
#include "trireme/parallel/tensor/linear.h"

namespace trireme::parallel {
namespace {

class MlpInParts : public model::Model {
 public:
  MlpInParts(const std::vector<std::int64_t>& widths, const comm::Group& group) {
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
      const std::string name = text("fc", i + 1);
      const ParallelLinearOptions options{.in = widths[i], .out = widths[i + 1]};
      if (i % 2 == 0) {
        columns_.push_back(register_module(name, std::make_shared<ColumnParallelLinear>(group, options)));
      } else {
        rows_.push_back(register_module(name, std::make_shared<RowParallelLinear>(group, options)));
      }
    }
  }

  void initialise(std::uint64_t seed) override { model::initialise(*this, seed); }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor values = input;
    for (std::size_t i = 0; i < num_layers(); ++i) values = run(i, values);
    return values;
  }

  std::vector<model::Layer> layers() override {
    std::vector<model::Layer> chain;
    for (std::size_t i = 0; i < num_layers(); ++i) {
      const std::string name = text("fc", i + 1);
      chain.push_back(model::make_layer(*this, name, {named_children()[name]},
                                        [this, i](const at::Tensor& input) { return run(i, input); }));
    }
    return chain;
  }

 private:
  std::size_t num_layers() const { return columns_.size() + rows_.size(); }
  at::Tensor run(std::size_t i, const at::Tensor& input) {
    if (i == 0) return columns_[0]->forward(input.flatten(1));
    const at::Tensor values = at::relu(input);
    return i % 2 == 0 ? columns_[i / 2]->forward(values) : rows_[i / 2]->forward(values);
  }

  std::vector<std::shared_ptr<ColumnParallelLinear>> columns_;
  std::vector<std::shared_ptr<RowParallelLinear>> rows_;
};

}  // namespace

TensorParallelModel form_of(const model::Mlp& whole, const TensorParallelOptions& options) {
  const std::vector<std::int64_t> widths = whole.widths();
  const bool ends_with_columns = widths.size() % 2 == 0;
  return {.model = std::make_shared<MlpInParts>(widths, options.group),
          .cut_classes = ends_with_columns ? widths.back() : 0};
}

TensorLimits limits_of(const model::Mlp& /*whole*/) { return {}; }

}  // namespace trireme::parallel
