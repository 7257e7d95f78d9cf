// Tensor-parallel layers that are recomputed on all ranks: the collectives of the second run, and keyed
// dropout.
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <gtest/gtest.h>

#include "tests/unit/parallel/small_models.h"
#include "trireme/base/text.h"
#include "trireme/comm/context.h"
#include "trireme/model/checkpointed.h"
#include "trireme/parallel/tensor/dropout.h"
#include "trireme/parallel/tensor/joint_pass.h"
#include "trireme/parallel/tensor/linear.h"

namespace trireme::parallel {
namespace {

using model::Tensors;
using test::numbers;

/// Two products with an all-reduce after the second, dropout, and an operator that saves its result.
class Block : public torch::nn::Module {
 public:
  Block(const comm::Group& group, const std::shared_ptr<DropoutKeys>& keys)
      : group_(group),
        first_(register_module("first", std::make_shared<ColumnParallelLinear>(
                                            group, ParallelLinearOptions{.in = 8, .out = 16}))),
        second_(register_module(
            "second", std::make_shared<RowParallelLinear>(group, ParallelLinearOptions{.in = 16, .out = 8}))),
        dropout_(register_module("dropout", std::make_shared<ParallelDropout>(keys, 0.3))) {}
  at::Tensor forward(const at::Tensor& x) {
    const JointPass pass(group_);
    return at::gelu(dropout_->forward(second_->forward(at::gelu(first_->forward(x)))));
  }

 private:
  const comm::Group group_;
  std::shared_ptr<ColumnParallelLinear> first_;
  std::shared_ptr<RowParallelLinear> second_;
  std::shared_ptr<ParallelDropout> dropout_;
};

/// Gradients of three steps. Each has another pass that begins between its forward and its backward.
Tensors gradients(comm::Context& context, bool checkpoints) {
  const auto keys = std::make_shared<DropoutKeys>(3);
  std::vector<std::shared_ptr<Block>> blocks;
  for (int i = 0; i < 3; ++i) {
    blocks.push_back(std::make_shared<Block>(context.world(), keys));
    test::fill_parameters(*blocks.back());
  }
  Tensors all;
  for (std::uint64_t step = 0; step < 3; ++step) {
    keys->begin(2 * step);
    at::Tensor values = numbers({4, 8}, static_cast<int>(step));
    for (const auto& block : blocks) {
      const auto run = [block](const at::Tensor& x) { return block->forward(x); };
      values = checkpoints ? at::Tensor(model::checkpointed(run, values)) : run(values);
    }
    keys->begin(2 * step + 1);
    values.sum().backward();
    for (const auto& block : blocks) {
      for (const at::Tensor& parameter : block->parameters()) all.push_back(parameter.grad().clone());
    }
  }
  return all;
}

TEST(CheckpointedTensorParallel, HasBitsOfUncheckpointedLayers) {
  for (const int ranks : {2, 3}) {
    SCOPED_TRACE(text(ranks, " ranks"));
    comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
      const Tensors plain = gradients(context, false), again = gradients(context, true);
      ASSERT_EQ(plain.size(), again.size());
      for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(plain[i].equal(again[i])) << i;
      context.world().barrier();
    });
  }
}

}  // namespace
}  // namespace trireme::parallel
