// Programs of docs/your-program.md. Two ranks compute the same as one rank on the global batch.
#include <ATen/ops/zeros.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <tuple>

#include "tests/unit/parallel/data_parallel_case.h"

namespace trireme::parallel {
namespace {

using test::numbers_f64;

/// The rows of the rank, half of all rows.
at::Tensor half_of_rank(const at::Tensor& all, int rank) {
  return all.chunk(2)[static_cast<std::size_t>(rank)];
}

void expect_near_one_rank(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected,
                          double bound) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_LE((got[i] - expected[i]).abs().max().item<double>(), bound) << "parameter " << i;
}

std::shared_ptr<TwoLayers> model_in_f64() {
  auto model = model_without_norm();
  model->to(at::kDouble);
  return model;
}

torch::jit::Module scripted() {
  torch::jit::Module module("scaled");
  module.register_parameter("weight", numbers_f64({4}, 3).requires_grad_(),
                            /*is_buffer=*/false);
  module.define("def forward(self, x):\n  return (x * self.weight).tanh()\n");
  return module;
}

at::Tensor loss_of_script(torch::jit::Module& module, const at::Tensor& x) {
  return module.forward({x}).toTensor().square().mean();
}

TEST(OwnProgram, TorchScriptModuleIsWrappedByParameters) {
  const at::Tensor all = numbers_f64({6, 4}, 1);
  torch::jit::Module alone = scripted();
  loss_of_script(alone, all).backward();
  run_ranks_as_threads(
      2,
      [&](Context& context) {
        torch::jit::Module module = scripted();
        Replica replica;
        for (const auto& item : module.named_parameters())
          replica.parameters.emplace_back(item.name, item.value);
        for (const auto& item : module.named_buffers()) replica.buffers.emplace_back(item.name, item.value);
        DistributedDataParallel ddp(context.world(), replica);
        for (int step = 0; step < 3; ++step) {  // the executor of scripts optimizes after the first runs
          ddp.zero_grad();
          loss_of_script(module, half_of_rank(all, context.rank())).backward();
        }
        expect_near_one_rank({module.attr("weight").toTensor().grad()},
                             {alone.attr("weight").toTensor().grad()}, 1e-14);
      },
      kDeadline);
}

/// A few iterations. The line search uses the loss that `loss` returns.
void minimize(TwoLayers& model, const std::function<at::Tensor()>& loss) {
  torch::optim::LBFGS optimizer(model.parameters(),
                                torch::optim::LBFGSOptions(4).max_iter(6).line_search_fn("strong_wolfe"));
  for (int step = 0; step < 3; ++step) {
    optimizer.step([&] {
      optimizer.zero_grad();
      return loss();
    });
  }
}

TEST(OwnProgram, LbfgsOverMeanLossMatchesOneRank) {
  at::Tensor all = numbers_f64({8, 4}, 1);
  all.narrow(0, 4, 4).mul_(5);  // the ranks' losses differ, and their line searches would differ, too
  const auto loss_on = [](TwoLayers& model, const at::Tensor& x) {
    return (model.forward(x) - 0.5).square().mean();
  };
  const auto alone = model_in_f64();
  minimize(*alone, [&] {
    const at::Tensor loss = loss_on(*alone, all);
    loss.backward();
    return loss;
  });
  run_ranks_as_threads(
      2,
      [&](Context& context) {
        const auto model = model_in_f64();
        DistributedDataParallel ddp(context, model);
        minimize(*model, [&] {
          const at::Tensor loss = loss_on(*model, half_of_rank(all, context.rank()));
          loss.backward();
          at::Tensor mean = loss.detach().clone();
          context.world().all_reduce(mean, comm::ReduceOp::kAverage);
          return mean;
        });
        expect_near_one_rank(model->parameters(), alone->parameters(), 1e-9);
      },
      kDeadline);
}

TEST(OwnProgram, TwoBackwardsThroughEncoderReduceOnce) {
  const at::Tensor all = numbers_f64({6, 4}, 1);
  const auto losses_on = [](TwoLayers& model, const at::Tensor& x) {
    const at::Tensor h = model.first->forward(x).tanh();
    return std::tuple(h.square().mean(), model.second->forward(h).abs().mean());
  };
  const auto alone = model_in_f64();
  const auto [one, other] = losses_on(*alone, all);
  (one + other).backward();
  run_ranks_as_threads(
      2,
      [&](Context& context) {
        const auto model = model_in_f64();
        DistributedDataParallel ddp(context, model);
        const auto [first, second] = losses_on(*model, half_of_rank(all, context.rank()));
        {
          const auto local = ddp.no_sync();
          first.backward({}, /*retain_graph=*/true);
        }
        second.backward();
        EXPECT_EQ(ddp.statistics().reductions, 1u);
        for (const auto& item : model->named_parameters()) {
          if (item.value().requires_grad())
            expect_near_one_rank({item.value().grad()}, {alone->named_parameters()[item.key()].grad()},
                                 1e-14);
        }
      },
      kDeadline);
}

/// Three pieces of each sequence. Each begins with the last state of the previous piece.
std::vector<at::Tensor> train_on_pieces(torch::nn::GRU& net, const at::Tensor& sequences) {
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  at::Tensor state = at::zeros({1, sequences.size(0), 5}, at::kDouble);
  for (const at::Tensor& piece : sequences.chunk(3, /*dim=*/1)) {
    state = state.detach();
    at::Tensor output;
    std::tie(output, state) = net->forward(piece, state);
    optimizer.zero_grad();
    output.square().mean().backward();
    optimizer.step();
  }
  return net->parameters();
}

torch::nn::GRU recurrent_net() {
  torch::nn::GRU net(torch::nn::GRUOptions(4, 5).batch_first(true));
  test::fill_parameters(*net);
  net->to(at::kDouble);
  return net;
}

TEST(OwnProgram, RecurrentStatesTrainLikeOneRank) {
  const at::Tensor all = numbers_f64({4, 9, 4}, 1);
  auto alone = recurrent_net();
  const auto expected = train_on_pieces(alone, all);
  run_ranks_as_threads(
      2,
      [&](Context& context) {
        auto net = recurrent_net();
        DistributedDataParallel ddp(context, net.ptr());
        expect_near_one_rank(train_on_pieces(net, half_of_rank(all, context.rank())), expected, 1e-13);
      },
      kDeadline);
}

}  // namespace
}  // namespace trireme::parallel
