// Captured and replayed layers train with the bits of layers without graphs.
#include "trireme/parallel/graphed_layer.h"

#include <ATen/ops/dropout.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <deque>

#include "tests/support/graphed_loops.h"
#include "tests/support/stand_in_device_graphs.h"
#include "trireme/base/error.h"
#include "trireme/parallel/on_stream.h"

namespace trireme::parallel {
namespace {

using test::batch_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class GraphedLayerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { test::register_stand_in_graphs(); }
};

/// A chain of layers on the device, some of which are captured.
struct Chain {
  torch::nn::Sequential net{torch::nn::Linear(test::kFeatures, 8), torch::nn::BatchNorm1d(8),
                            torch::nn::ReLU(), torch::nn::Linear(8, test::kClasses)};
  std::vector<model::Layer> layers = model::layers_of(net);

  Chain(comm::Context& context, const GraphOptions& options, const std::shared_ptr<GraphCounts>& counts) {
    const at::NoGradGuard no_grad;
    int number = 0;
    for (at::Tensor& parameter : net->parameters())
      parameter.copy_(
          at::linspace(-0.5, 0.5, parameter.numel()).add(0.01 * ++number).view(parameter.sizes()).sin());
    for (model::Layer& layer : layers) {
      model::move_to(layer, context.device());
      layer = graphed(layer, context.device(), options, counts);
    }
  }
  at::Tensor forward(const at::Tensor& input) const {
    Fields values = input;
    for (const model::Layer& layer : layers) values = layer.forward(values);
    return values;
  }
  std::vector<at::Tensor> state() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& parameter : net->parameters()) all.push_back(parameter.detach().cpu());
    for (const at::Tensor& buffer : net->buffers()) all.push_back(buffer.detach().cpu());
    return all;
  }
};

/// Makes a stream current that can be captured, while the object exists.
OnStream side_stream(comm::Context& context) {
  const c10::impl::VirtualGuardImpl device(context.device().type());
  return {device.getStream(context.device()), device.getStreamFromGlobalPool(context.device())};
}

struct Trained {
  std::vector<at::Tensor> state;
  GraphCounts counts;
};

/// One step with the chain, given its number.
using ChainStep = std::function<void(Chain& chain, int number)>;

Trained train_chain(GraphUse use, const ChainStep& step, int num_steps = 8) {
  Trained trained;
  comm::run_ranks_as_threads(1,
                             [&](comm::Context& context) {
                               const c10::impl::VirtualGuardImpl device(context.device().type());
                               const OnStream scope(device.getStream(context.device()),
                                                    device.getStreamFromGlobalPool(context.device()));
                               at::manual_seed(5);
                               const auto counts = std::make_shared<GraphCounts>();
                               Chain chain(context, {.use = use, .warm_up = 2}, counts);
                               optim::NamedTensors parameters;
                               for (const auto& item : chain.net->named_parameters())
                                 parameters.emplace_back(item.key(), item.value());
                               const auto optimizer = optim::make_optimizer(
                                   {.name = "sgd", .lr = 0.1, .momentum = 0.9}, parameters);
                               for (int number = 0; number < num_steps; ++number) {
                                 chain.net->zero_grad();
                                 step(chain, number);
                                 optimizer->step();
                               }
                               trained = {.state = chain.state(), .counts = *counts};
                             },
                             {.device = test::kStandInDevice});
  return trained;
}

at::Tensor loss_for(Chain& chain, int number, std::int64_t rows) {
  const Fields batch = batch_of(number, rows).on(chain.net->parameters().front().device());
  return test::loss_of(chain.forward(batch.at(0)), batch);
}

struct ChainRow {
  const char* name;
  ChainStep step;
  std::int64_t captures;  ///< of 4 layers
};

const ChainRow kChainRows[] = {
    {"OneMicroBatch", [](Chain& chain, int number) { loss_for(chain, number, 8).backward(); }, 4},
    {"Accumulated",
     [](Chain& chain, int number) {
       for (int part = 0; part < 3; ++part) loss_for(chain, 3 * number + part, 8).backward();
     },
     4},
    {"SeveralInFlight",
     [](Chain& chain, int number) {
       std::deque<at::Tensor> losses;
       for (int part = 0; part < 3; ++part) losses.push_back(loss_for(chain, 3 * number + part, 8));
       for (const at::Tensor& loss : losses) loss.backward();
     },
     // The first two of three micro-batches of the first step are warm-up.
     3 * 4},
    {"TwoSizes",
     [](Chain& chain, int number) { loss_for(chain, number, number % 2 == 0 ? 8 : 5).backward(); }, 2 * 4},
    {"GraphOfAutogradKept",
     [](Chain& chain, int number) {
       const at::Tensor loss = loss_for(chain, number, 8);
       loss.backward({}, /*retain_graph=*/true);
       loss.backward();
     },
     4},
    {"ForwardWithoutBackward",
     [](Chain& chain, int number) {
       loss_for(chain, number + 100, 8);
       loss_for(chain, number, 8).backward();
     },
     4},
    {"EvaluatedInBetween",
     [](Chain& chain, int number) {
       loss_for(chain, number, 8).backward();
       chain.net->eval();
       const at::NoGradGuard no_grad;
       loss_for(chain, number, 8);
       chain.net->train();
     },
     4},
    {"FirstLayerFrozenHalfway",
     [](Chain& chain, int number) {
       for (at::Tensor& parameter : chain.net[0]->parameters()) parameter.requires_grad_(number < 4);
       loss_for(chain, number, 8).backward();
     },
     // Without gradients, the first layer has only a forward, and the second layer has no gradient of its
     // input.
     4 + 2},
};

class GraphedChain : public GraphedLayerTest, public testing::WithParamInterface<ChainRow> {};

TEST_P(GraphedChain, HasBitsOfPlainLayers) {
  const Trained plain = train_chain(GraphUse::kOff, GetParam().step),
                graphed = train_chain(GraphUse::kOn, GetParam().step);
  EXPECT_EQ(plain.counts.num_replays, 0);
  EXPECT_EQ(graphed.counts.num_graphs, GetParam().captures);
  EXPECT_GE(graphed.counts.num_replays, 4 * 4);
  ASSERT_EQ(graphed.state.size(), plain.state.size());
  for (std::size_t i = 0; i < plain.state.size(); ++i)
    EXPECT_TRUE(graphed.state[i].equal(plain.state[i])) << "tensor " << i;
}

INSTANTIATE_TEST_SUITE_P(Of, GraphedChain, testing::ValuesIn(kChainRows),
                         [](const auto& row) { return std::string(row.param.name); });

TEST_F(GraphedLayerTest, FollowsWeightsToNewAddresses) {
  const ChainStep step = [](Chain& chain, int number) {
    if (number == 4) {
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : chain.net->parameters()) parameter.set_data(parameter.mul(0.5));
    }
    loss_for(chain, number, 8).backward();
  };
  const Trained plain = train_chain(GraphUse::kOff, step), graphed = train_chain(GraphUse::kOn, step);
  EXPECT_EQ(graphed.counts.num_graphs, 4 + 3) << "the layer without weights keeps its graph";
  for (std::size_t i = 0; i < plain.state.size(); ++i)
    EXPECT_TRUE(graphed.state[i].equal(plain.state[i])) << i;
}

TEST_F(GraphedLayerTest, EndsWhereWeightsMoveEachStep) {
  const ChainStep step = [](Chain& chain, int number) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : chain.net->parameters()) parameter.set_data(parameter.clone());
    const at::AutoGradMode learns(true);
    loss_for(chain, number, 8).backward();
  };
  const Trained plain = train_chain(GraphUse::kOff, step, 16),
                graphed = train_chain(GraphUse::kAuto, step, 16);
  EXPECT_THAT(graphed.counts.why_not, AllOf(HasSubstr("layer '"), HasSubstr("change their addresses")));
  for (std::size_t i = 0; i < plain.state.size(); ++i)
    EXPECT_TRUE(graphed.state[i].equal(plain.state[i])) << i;
}

TEST_F(GraphedLayerTest, CapturesNoMoreThanSixteenSizes) {
  const ChainStep step = [](Chain& chain, int number) { loss_for(chain, number, 4 + number / 3).backward(); };
  const Trained plain = train_chain(GraphUse::kOff, step, 60),
                graphed = train_chain(GraphUse::kAuto, step, 60);
  EXPECT_THAT(graphed.counts.why_not, HasSubstr("inputs of more than 16 sizes"));
  EXPECT_EQ(graphed.counts.num_graphs, 16 * 4);
  for (std::size_t i = 0; i < plain.state.size(); ++i)
    EXPECT_TRUE(graphed.state[i].equal(plain.state[i])) << i;
}

TEST_F(GraphedLayerTest, NamesLayerThatReadsDevice) {
  comm::run_ranks_as_threads(
      1,
      [](comm::Context& context) {
        const OnStream scope = side_stream(context);
        const at::Tensor weight =
            at::linspace(0, 1, test::kFeatures).to(context.device()).requires_grad_(true);
        const model::Layer reads{.name = "gate",
                                 .forward =
                                     [weight](const Fields& inputs) {
                                       const at::Tensor product = inputs.at(0) * weight;
                                       return Fields(product * product.sum().item<float>());
                                     },
                                 .parameters = {{"weight", weight}}};
        const at::Tensor input = batch_of(0, 4).at(0).to(context.device());
        const auto counts = std::make_shared<GraphCounts>();
        const model::Layer tried = graphed(reads, context.device(), {.warm_up = 1}, counts);
        for (int call = 0; call < 3; ++call)
          EXPECT_TRUE(tried.forward(input).at(0).cpu().equal(reads.forward(input).at(0).cpu()));
        EXPECT_THAT(counts->why_not,
                    AllOf(HasSubstr("layer 'gate'"), HasSubstr("a number is read on the host")));
        EXPECT_EQ(counts->num_graphs, 0);
        const model::Layer on =
            graphed(reads, context.device(), {.use = GraphUse::kOn, .warm_up = 1}, counts);
        on.forward(input);
        for (int call = 0; call < 2; ++call)
          EXPECT_THAT([&] { on.forward(input); },
                      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("layer 'gate' cannot be captured"),
                                                           HasSubstr("read on the host"))));
      },
      {.device = test::kStandInDevice});
}

TEST_F(GraphedLayerTest, ReportsChangeOfInputInPlace) {
  comm::run_ranks_as_threads(
      1,
      [](comm::Context& context) {
        const OnStream scope = side_stream(context);
        const auto counts = std::make_shared<GraphCounts>();
        const model::Layer relu = graphed(
            {.name = "relu", .forward = [](const Fields& inputs) { return Fields(inputs.at(0).relu_()); }},
            context.device(), {.warm_up = 1}, counts);
        for (int call = 0; call < 3; ++call) {
          const at::Tensor leaf = batch_of(call, 4).at(0).to(context.device()).requires_grad_(true);
          const at::Tensor input = leaf * 1;
          const at::Tensor output = relu.forward(input);
          EXPECT_TRUE(input.cpu().equal(output.cpu())) << "the caller's tensor is changed";
        }
        EXPECT_THAT(counts->why_not, HasSubstr("layer 'relu': it changes its input in place"));
      },
      {.device = test::kStandInDevice});
}

TEST_F(GraphedLayerTest, ReportsParameterThatIsNotListed) {
  comm::run_ranks_as_threads(
      1,
      [](comm::Context& context) {
        const OnStream scope = side_stream(context);
        const at::Tensor hidden =
            at::linspace(0, 1, test::kFeatures).to(context.device()).requires_grad_(true);
        const auto counts = std::make_shared<GraphCounts>();
        const model::Layer layer =
            graphed({.name = "head",
                     .forward = [hidden](const Fields& inputs) { return Fields(inputs.at(0) * hidden); }},
                    context.device(), {.warm_up = 1}, counts);
        const at::Tensor input = batch_of(0, 4).at(0).to(context.device());
        for (int call = 0; call < 3; ++call) {
          hidden.mutable_grad().reset();
          layer.forward(input).at(0).sum().backward();
          ASSERT_TRUE(hidden.grad().defined()) << call;
          EXPECT_TRUE(hidden.grad().cpu().allclose(input.sum(0).cpu())) << call;
        }
        EXPECT_THAT(counts->why_not,
                    HasSubstr("layer 'head': it computes with a parameter that it does not list"));
      },
      {.device = test::kStandInDevice});
}

TEST_F(GraphedLayerTest, NeedsStreamThatCanBeCaptured) {
  comm::run_ranks_as_threads(1,
                             [](comm::Context& context) {
                               const auto counts = std::make_shared<GraphCounts>();
                               Chain chain(context, {.use = GraphUse::kOn}, counts);
                               EXPECT_THAT([&] { loss_for(chain, 0, 8); },
                                           ThrowsMessage<InvalidArgument>(HasSubstr("the default stream")));
                             },
                             {.device = test::kStandInDevice});
}

TEST_F(GraphedLayerTest, RejectsGradientsOfGradients) {
  EXPECT_THAT(
      [] {
        train_chain(GraphUse::kOn, [](Chain& chain, int number) {
          loss_for(chain, number, 8).backward({}, /*retain_graph=*/true, /*create_graph=*/true);
        });
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("create_graph")));
}

}  // namespace
}  // namespace trireme::parallel
