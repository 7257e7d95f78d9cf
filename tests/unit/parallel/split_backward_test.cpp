#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "tests/unit/parallel/stage_layers.h"
#include "trireme/parallel/pipeline/internal/stage.h"
#include "trireme/parallel/pipeline/pipeline.h"
#include "trireme/schedule/simulate.h"

namespace trireme::parallel {
namespace {

namespace nn = torch::nn;
using test::expect_same;
using test::numbers;
using test::one;
using test::Own;
using test::Tensors;
using test::tokens;
using testing::ElementsAre;
using testing::HasSubstr;

/// Counts by name how often operators run on this thread while the object exists.
class CountedOperators {
 public:
  CountedOperators() {
    counts_ = &counts;
    handle_ =
        at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function)
                                                                  -> std::unique_ptr<at::ObserverContext> {
                                     ++(*counts_)[function.name()];
                                     return nullptr;
                                   }).scopes({at::RecordScope::FUNCTION}));
  }
  ~CountedOperators() { at::removeCallback(handle_); }
  CountedOperators(const CountedOperators&) = delete;
  CountedOperators& operator=(const CountedOperators&) = delete;

  std::map<std::string, int> counts;

 private:
  static thread_local std::map<std::string, int>* counts_;
  at::CallbackHandle handle_ = 0;
};
thread_local std::map<std::string, int>* CountedOperators::counts_ = nullptr;

at::Tensor gradient_of(const Stage& stage, std::size_t layer, std::size_t parameter = 0) {
  return stage.layers()[layer].parameters[parameter].second.grad();
}

TEST(SplitBackward, EachPartRunsItsProductsAlone) {
  Stage stage({one(nn::Linear(6, 5)), one(nn::Tanh()), one(nn::Linear(5, 4))}, StageOptions{});
  stage.forward(0, numbers({7, 6}, 1));
  const auto products = [](const auto& run) {
    CountedOperators counted;
    run();
    return counted.counts["aten::mm"];
  };
  EXPECT_EQ(products([&] { stage.backward_input(0, numbers({7, 4}, 2)); }), 2);
  for (const std::size_t layer : {0, 2}) {
    EXPECT_FALSE(gradient_of(stage, layer).defined()) << "the first part leaves parameters alone";
  }
  EXPECT_EQ(products([&] { stage.backward_weight(0); }), 2);
  EXPECT_TRUE(gradient_of(stage, 0).defined());
}

TEST(SplitBackward, FirstPartPassesLayersWithoutTrainableInput) {
  Stage stage({one(nn::Embedding(20, 6)), one(nn::Linear(6, 5)), one(nn::Linear(5, 4))}, StageOptions{});
  stage.forward(0, tokens(0));
  CountedOperators counted;
  EXPECT_FALSE(stage.backward_input(0, numbers({2, 8, 4}, 2)).defined());
  EXPECT_EQ(counted.counts["aten::mm"], 2);
  EXPECT_EQ(counted.counts["aten::embedding_dense_backward"], 0);
  stage.backward_weight(0);
  EXPECT_EQ(counted.counts["aten::mm"], 4);
  EXPECT_EQ(counted.counts["aten::embedding_dense_backward"], 1);
}

TEST(SplitBackward, SkipsGradientOfFirstInput) {
  const std::vector<model::Layer> layers = {one(nn::Linear(6, 5)), one(nn::Tanh()), one(nn::Linear(5, 4))};
  Stage stage(layers, {.wants_input_gradient = false});
  for (const int m : {0, 1}) stage.forward(m, numbers({7, 6}, 1));
  CountedOperators counted;
  EXPECT_FALSE(stage.backward(0, numbers({7, 4}, 2)).defined());
  EXPECT_EQ(counted.counts["aten::mm"], 3);
  const at::Tensor expected = gradient_of(stage, 0).clone();
  EXPECT_FALSE(stage.backward_input(1, numbers({7, 4}, 2)).defined());
  EXPECT_EQ(counted.counts["aten::mm"], 4) << "down to the output of the first layer with parameters";
  EXPECT_TRUE(gradient_of(stage, 0).equal(expected));
  stage.backward_weight(1);
  EXPECT_EQ(counted.counts["aten::mm"], 6);
  EXPECT_TRUE(gradient_of(stage, 0).equal(2 * expected));
}

TEST(SplitBackward, ReleasesTensorsUnneededBySecondPart) {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> kept;
  std::function<void()> on_first;  // called when the gradient arrives at the first layer
  const auto noted = [&](model::Layer layer) {
    layer.forward = [&, forward = layer.forward](const at::Tensor& x) {
      at::Tensor result = forward(x);
      if (kept.empty()) result.register_hook([&](const at::Tensor&) { on_first(); });
      kept.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(
          result.storage().unsafeGetStorageImpl()));
      return result;
    };
    return layer;
  };
  // A Tanh saves its result. That of the first is also the Linear's input. That of the second is not needed
  // any more.
  Stage stage({noted(one(nn::Tanh())), noted(one(nn::Linear(6, 6))), noted(one(nn::Tanh())), one(nn::Tanh())},
              StageOptions{});
  const auto alive = [&](std::size_t i) { return !kept[i].expired(); };
  bool was_alive = true;
  on_first = [&] { was_alive = alive(2); };
  stage.forward(0, numbers({7, 6}, 1));
  EXPECT_TRUE(alive(0) && alive(2));
  stage.backward_input(0, numbers({7, 6}, 2));
  EXPECT_FALSE(was_alive) << "at once";
  EXPECT_TRUE(alive(0));
  stage.backward_weight(0);
  EXPECT_FALSE(alive(0));
}

TEST(SplitBackward, SkipsStageWithoutTrainableParameters) {
  model::Layer fixed = one(nn::Embedding(20, 6));
  fixed.parameters[0].second.requires_grad_(false);
  Stage stage({fixed}, StageOptions{});
  for (const int m : {0, 1}) stage.forward(m, tokens(m));
  EXPECT_FALSE(stage.backward(0, numbers({2, 8, 6}, 1)).defined());
  EXPECT_FALSE(stage.backward_input(1, numbers({2, 8, 6}, 1)).defined());
  stage.backward_weight(1);
  EXPECT_EQ(stage.num_live(), 0);
}

TEST(SplitBackward, IndependentOutputGivesInputNoGradient) {
  Stage stage(Own{[](const at::Tensor&, const Tensors& p) { return p[0] * 2; }, {{6}}}(), StageOptions{});
  stage.forward(0, numbers({7, 6}, 1));
  EXPECT_FALSE(stage.backward_input(0, torch::ones(6)).defined());
  EXPECT_FALSE(gradient_of(stage, 0).defined());
  stage.backward_weight(0);
  EXPECT_TRUE(gradient_of(stage, 0).equal(torch::full(6, 2.0)));
}

/// Multiplies by a weight. Computes only the requested gradients, and counts its calls.
struct CountedProduct : torch::autograd::Function<CountedProduct> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, int* backwards) {
    context->save_for_backward({x, weight});
    context->saved_data["backwards"] = reinterpret_cast<std::int64_t>(backwards);
    return x.matmul(weight);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    ++*reinterpret_cast<int*>(context->saved_data["backwards"].toInt());
    const auto saved = context->get_saved_variables();
    const at::Tensor of_weight =
        context->needs_input_grad(1) ? saved[0].t().matmul(gradients[0]) : at::Tensor();
    return {gradients[0].matmul(saved[1].t()), of_weight, at::Tensor()};
  }
};

TEST(SplitBackward, CustomFunctionsRunOnceAndAreReported) {
  int backwards = 0;
  const Own tied{[&backwards](const at::Tensor& x, const Tensors& p) {
                   const at::Tensor h = CountedProduct::apply(x, p[0], &backwards).matmul(p[0]);
                   return CountedProduct::apply(h.tanh(), p[0], &backwards).matmul(p[1]);
                 },
                 {{6, 6}, {6, 4}}};
  const auto in_parts = tied(), whole = tied();
  Stage stage(in_parts, StageOptions{});
  stage.forward(0, numbers({7, 6}, 1));
  const at::Tensor of_input = stage.backward_input(0, numbers({7, 4}, 2));
  EXPECT_EQ(backwards, 2);
  EXPECT_FALSE(gradient_of(stage, 0).defined());
  EXPECT_THAT(stage.unsplit(), testing::Contains(HasSubstr("CountedProduct")));
  EXPECT_THAT(stage.unsplit(), testing::Not(testing::Contains(HasSubstr("CppNode"))));
  stage.backward_weight(0);
  EXPECT_EQ(backwards, 2);
  Stage other(whole, StageOptions{});
  other.forward(0, numbers({7, 6}, 1));
  expect_same(of_input, other.backward(0, numbers({7, 4}, 2)), "input");
  for (const std::size_t i : {0, 1}) expect_same(gradient_of(stage, 0, i), gradient_of(other, 0, i), text(i));
}

TEST(SplitBackward, ReportsKernelsOfBothGradients) {
  Stage stage({one(nn::Linear(6, 6)), one(nn::PReLU())}, StageOptions{});
  stage.forward(0, numbers({7, 6}, 1));
  CountedOperators counted;
  stage.backward_input(0, numbers({7, 6}, 2));
  stage.backward_weight(0);
  EXPECT_EQ(counted.counts["aten::_prelu_kernel_backward"], 1);
  EXPECT_THAT(stage.unsplit(), ElementsAre("PreluKernelBackward0"));
}

TEST(SplitBackward, HooksAreCalledOnce) {
  int on_values = 0, on_parameter = 0, after_accumulation = 0;
  std::vector<model::Layer> layers = {one(nn::Linear(6, 6)), one(nn::Linear(6, 6))};
  layers[0].forward = [forward = layers[0].forward, &on_values](const at::Tensor& x) {
    at::Tensor result = forward(x);
    result.register_hook([&on_values](const at::Tensor& gradient) {
      ++on_values;
      return gradient * 2;
    });
    return result;
  };
  const at::Tensor weight = layers[0].parameters[0].second;
  weight.register_hook([&](const at::Tensor&) { ++on_parameter; });
  struct Counted : torch::autograd::PostAccumulateGradHook {
    explicit Counted(int& number) : count(number) {}
    void operator()(const at::Tensor&) override { ++count; }
    int& count;
  };
  torch::autograd::impl::set_post_acc_grad_hooks(weight, std::make_unique<Counted>(after_accumulation));
  Stage stage(layers, StageOptions{});
  stage.forward(0, numbers({7, 6}, 1));
  const at::Tensor of_input = stage.backward_input(0, numbers({7, 6}, 2));
  EXPECT_EQ(on_values, 1);
  EXPECT_EQ(on_parameter, 0);
  stage.backward_weight(0);
  EXPECT_EQ(on_values, 1);
  EXPECT_EQ(on_parameter, 1);
  EXPECT_EQ(after_accumulation, 1);
  const at::Tensor once = weight.grad().clone();
  weight.mutable_grad().reset();
  stage.forward(1, numbers({7, 6}, 1));
  expect_same(of_input, stage.backward(1, numbers({7, 6}, 2)), "input");
  expect_same(once, weight.grad(), "weight");
}

TEST(SplitBackward, HooksOfTokenStageRunOnce) {
  int calls = 0;
  const auto run = [&](bool split) {
    std::vector<model::Layer> layers = {one(nn::Embedding(20, 6)), one(nn::Linear(6, 4))};
    layers[0].forward = [forward = layers[0].forward, &calls](const at::Tensor& x) {
      at::Tensor result = forward(x);
      result.register_hook([&calls](const at::Tensor& gradient) {
        ++calls;
        return gradient * 2;
      });
      return result;
    };
    Stage stage(layers, StageOptions{});
    stage.forward(0, tokens(0));
    calls = 0;
    if (split) {
      stage.backward_input(0, numbers({2, 8, 4}, 2));
      stage.backward_weight(0);
    } else {
      stage.backward(0, numbers({2, 8, 4}, 2));
    }
    EXPECT_EQ(calls, 1);
    return gradient_of(stage, 0);
  };
  expect_same(run(true), run(false), "embedding");
}

TEST(SplitBackward, PipelineHoldsMicrobatchesUntilWeightsAreDone) {
  for (const char* name : {"zb-h1", "zb-h2", "interleaved-zb", "zb-v", "v-min"}) {
    SCOPED_TRACE(name);
    comm::run_ranks_as_threads(2, [&](comm::Context& context) {
      std::vector<model::Layer> layers;
      for (int i = 0; i < 8; ++i) layers.push_back(one(nn::Linear(6, 6)));
      for (std::size_t i = 0; i < layers.size(); ++i) {  // each has its own names
        for (auto& [key, parameter] : layers[i].parameters) key = text(i, ".", key);
      }
      layers.back() = one(nn::PReLU());
      Pipeline pipe(context, layers, {.schedule = name, .num_microbatches = 8});
      pipe.step(
          numbers({16, 6}, 1), numbers({16, 6}, 2),
          [](const at::Tensor& output, const at::Tensor& target) { return at::mse_loss(output, target); });
      const auto rank = static_cast<std::size_t>(context.rank());
      EXPECT_EQ(pipe.peak_live_microbatches(), schedule::simulate(pipe.program()).peak_activations[rank]);
      EXPECT_EQ(pipe.unsplit().empty(), !pipe.has_last_stage());
    });
  }
}

}  // namespace
}  // namespace trireme::parallel
