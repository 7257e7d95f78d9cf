// A checkpointed forward gives the bits of a plain one and saves only its inputs. It reports the reason if it
// cannot be recomputed.
#include "trireme/model/checkpointed.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tanh.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <thread>

#include "tests/unit/model/learning.h"
#include "trireme/model/forward_record.h"
#include "trireme/model/gpt.h"

namespace trireme::model {
namespace {

namespace nn = torch::nn;
using test::Forward;
using test::learning;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// Whether no tensor holds these bytes any more.
bool is_gone(const c10::weak_intrusive_ptr<c10::StorageImpl>& storage) { return storage.expired(); }

c10::weak_intrusive_ptr<c10::StorageImpl> storage_of(const at::Tensor& tensor) {
  return c10::weak_intrusive_ptr<c10::StorageImpl>(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl()));
}

/// Runs with the same model, data and random numbers, with or without checkpoints. Returns output, gradients,
/// buffers, and the generator state after the backward.
Tensors traces(std::vector<Layer> layers, const at::Tensor& input, bool with_checkpoints) {
  torch::manual_seed(11);
  const at::Tensor x = input.detach().clone();
  if (x.is_floating_point()) x.requires_grad_(true);
  Tensors parameters;
  for (Layer& layer : layers) {
    for (const auto& [name, parameter] : layer.parameters) parameters.push_back(parameter);
    if (with_checkpoints) layer = checkpointed(std::move(layer));
  }
  for (const at::Tensor& parameter : parameters) at::Tensor(parameter).mutable_grad() = at::Tensor();
  Fields values = x;
  for (const Layer& layer : layers) values = layer.forward(values);
  Tensors all = {values.at(0).detach().clone()};
  all.push_back(at::rand({3}));
  values.at(0).to(at::kFloat).square().sum().backward();
  all.push_back(at::rand({3}));
  if (x.requires_grad()) all.push_back(x.grad());
  for (const at::Tensor& parameter : parameters) all.push_back(parameter.grad().clone());
  for (const at::Tensor& buffer : buffers_of(layers)) {
    all.push_back(buffer.clone());
    const at::NoGradGuard no_grad;
    at::Tensor(buffer).zero_();
  }
  return all;
}

void expect_same_traces(const std::vector<Layer>& layers, const at::Tensor& input) {
  for (const at::Tensor& buffer : buffers_of(layers)) at::Tensor(buffer).zero_();
  const Tensors plain = traces(layers, input, false), again = traces(layers, input, true);
  ASSERT_EQ(plain.size(), again.size());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(plain[i].equal(again[i])) << "number " << i;
    EXPECT_EQ(plain[i].strides(), again[i].strides()) << "number " << i;
  }
}

nn::Sequential perceptron() {
  return nn::Sequential(nn::Linear(8, 16), nn::Dropout(0.5), nn::Linear(16, 16), nn::Dropout(0.3),
                        nn::Linear(16, 4));
}

std::vector<Layer> convolutions(const nn::Sequential& chain) {
  return {make_layer(*chain, "images", {chain.ptr()}, [net = chain](const at::Tensor& x) mutable {
    // In place, on a tensor that the layer itself has created.
    return at::relu(net->forward(x).add_(1));
  })};
}

nn::Sequential images() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(2, 4, 3).padding(1)), nn::BatchNorm2d(4),
                        nn::Conv2d(nn::Conv2dOptions(4, 4, 3).padding(1)),
                        nn::BatchNorm2d(nn::BatchNormOptions(4).momentum(std::nullopt)));
}

TEST(Checkpointed, GivesTheBitsOfAPlainForward) {
  expect_same_traces(layers_of(perceptron()), at::randn({5, 8}));
  expect_same_traces(convolutions(images()), at::randn({3, 2, 6, 6}));
  expect_same_traces(convolutions(images()), at::randn({3, 2, 6, 6}).to(at::MemoryFormat::ChannelsLast));
  Gpt gpt({.layers = 2, .heads = 2, .width = 16, .block = 8, .vocabulary = 11});
  gpt.initialise(1);
  expect_same_traces(gpt.layers(), at::arange(16).reshape({2, 8}).remainder(11));
}

/// Sets autocast of the thread, and restores it.
class Autocast {
 public:
  explicit Autocast(at::ScalarType dtype) : dtype_before_(at::autocast::get_autocast_dtype(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_dtype(at::kCPU, dtype_before_);
  }

 private:
  const at::ScalarType dtype_before_;
};

TEST(Checkpointed, RecomputesUnderAutocastOfItsForward) {
  nn::Sequential chain = perceptron();
  const auto gradients = [&](bool with_checkpoints) {
    chain->zero_grad();
    torch::manual_seed(5);
    const at::Tensor x = at::randn({5, 8});
    const Forward forward = [chain](const at::Tensor& in) mutable { return chain->forward(in); };
    at::Tensor y;
    {
      const Autocast half(at::kBFloat16);
      y = with_checkpoints ? checkpointed(forward, x) : forward(x);
    }
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    y.to(at::kFloat).square().sum().backward();
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    Tensors all;
    for (const at::Tensor& parameter : chain->parameters()) all.push_back(parameter.grad().clone());
    return all;
  };
  const Tensors plain = gradients(false), again = gradients(true);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(plain[i].equal(again[i])) << i;
}

TEST(Checkpointed, KeepsNothingButItsInputs) {
  c10::weak_intrusive_ptr<c10::StorageImpl> inside = storage_of(at::rand({1}));
  int runs = 0;
  const Forward forward = [&](const at::Tensor& x) {
    ++runs;
    const at::Tensor squashed = at::tanh(x);
    inside = storage_of(squashed);
    return at::sin(squashed);
  };
  const at::Tensor x = learning({4});
  at::Tensor y = checkpointed(forward, x);
  EXPECT_TRUE(is_gone(inside));
  EXPECT_EQ(runs, 1);
  y.sum().backward();
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(is_gone(inside)) << "the backward is over";
  forward(x)->sum().backward();
}

TEST(Checkpointed, StopsRecomputationAtLastNeededTensor) {
  int ends = 0;
  const Forward forward = [&](const at::Tensor& x) {
    const at::Tensor y = at::tanh(x) + 1;
    ++ends;
    return y;
  };
  checkpointed(forward, learning({4}))->sum().backward();
  EXPECT_EQ(ends, 1);
}

TEST(Checkpointed, MayHoldCheckpointedForwards) {
  std::map<std::string, int> runs;
  const auto part = [&](const std::string& name) -> Forward {
    return [&runs, name](const at::Tensor& x) {
      ++runs[name];
      return at::dropout(at::sin(x * 3), 0.5, true);
    };
  };
  const auto train = [&](bool nested) {
    torch::manual_seed(2);
    const at::Tensor x = learning({64});
    const Forward inner = [&](const at::Tensor& in) {
      const at::Tensor first = nested ? checkpointed(part("first"), in) : part("first")(in);
      const at::Tensor second = nested ? checkpointed(part("second"), first) : part("second")(first);
      return at::exp(second);
    };
    const at::Tensor y = nested ? checkpointed(inner, x) : inner(x);
    y.sum().backward();
    return x.grad();
  };
  const at::Tensor plain = train(false);
  runs.clear();
  EXPECT_TRUE(plain.equal(train(true)));
  // Once in the forward, once for the outer recomputation, and once for its own.
  EXPECT_EQ(runs["first"], 3);
  EXPECT_EQ(runs["second"], 3);
}

TEST(Checkpointed, TakesAndReturnsTensorsOfAnyKind) {
  const auto train = [](bool with_checkpoints) {
    torch::manual_seed(3);
    const at::Tensor a = learning({4, 4}), b = at::randn({4, 4}), places = at::arange(4).flip({0});
    Fields inputs;
    inputs.add("a", a);
    inputs.add("b", b);
    inputs.add("places", places);
    const Forward forward = [](const Fields& in) {
      Fields out;
      out.add("product", (in["a"] * in["b"]).index({in["places"]}));
      out.add("places", in["places"] + 1);
      out.add("passed on", in["a"]);
      return out;
    };
    const Fields out = with_checkpoints ? checkpointed(forward, inputs) : forward(inputs);
    EXPECT_TRUE(out["places"].equal(places + 1));
    (out["product"].sin().sum() + out["passed on"].square().sum()).backward();
    return a.grad();
  };
  EXPECT_TRUE(train(false).equal(train(true)));
}

TEST(Checkpointed, TrainsCapturesWithoutTrainableInputs) {
  nn::Linear linear(4, 4);
  const at::Tensor x = at::randn({2, 4});
  const Forward forward = [linear](const at::Tensor& in) mutable { return at::tanh(linear->forward(in)); };
  checkpointed(forward, x)->sum().backward();
  const at::Tensor found = linear->weight.grad().clone();
  linear->zero_grad();
  forward(x)->sum().backward();
  EXPECT_TRUE(found.equal(linear->weight.grad()));
}

TEST(Checkpointed, CallsHooksOfGradientsOnce) {
  nn::Linear linear(4, 4);
  int calls = 0;
  linear->weight.register_hook([&](const at::Tensor&) { ++calls; });
  const Forward forward = [linear](const at::Tensor& in) mutable { return at::tanh(linear->forward(in)); };
  checkpointed(forward, at::randn({2, 4}))->sum().backward();
  EXPECT_EQ(calls, 1);
}

TEST(Checkpointed, KeepsRecomputedTensorsWithRetainedGraph) {
  int runs = 0;
  const at::Tensor x = learning({4});
  const Forward forward = [&](const at::Tensor& in) {
    ++runs;
    return at::tanh(at::exp(in));
  };
  const at::Tensor y = checkpointed(forward, x)->sum();
  y.backward({}, /*retain_graph=*/true);
  const at::Tensor once = x.grad().clone();
  y.backward();
  EXPECT_TRUE(x.grad().equal(once + once));
  EXPECT_EQ(runs, 2);
  EXPECT_THAT([&] { y.backward(); }, ThrowsMessage<c10::Error>(HasSubstr("second time")));
}

TEST(Checkpointed, HasGradientsOfGradients) {
  const Forward forward = [](const at::Tensor& in) { return at::tanh(in) * at::exp(in); };
  const auto second = [&](bool with_checkpoints) {
    torch::manual_seed(4);
    const at::Tensor x = learning({4});
    const at::Tensor y = with_checkpoints ? checkpointed(forward, x) : forward(x);
    const at::Tensor first = torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    return torch::autograd::grad({first.square().sum()}, {x})[0];
  };
  EXPECT_TRUE(second(false).equal(second(true)));
}

TEST(Checkpointed, MayDifferentiateInItsForward) {
  const Forward forward = [](const at::Tensor& in) {
    const at::Tensor y = at::exp(at::sin(in));
    return y + torch::autograd::grad({y.sum()}, {in}, {}, true, /*create_graph=*/true)[0];
  };
  const auto gradient = [&](bool with_checkpoints) {
    torch::manual_seed(4);
    const at::Tensor x = learning({4});
    at::Tensor y = with_checkpoints ? checkpointed(forward, x) : forward(x);
    y.sum().backward();
    return x.grad();
  };
  EXPECT_TRUE(gradient(false).equal(gradient(true)));
}

TEST(Checkpointed, GoesBackwardOnAnotherThread) {
  const Forward forward = [](const at::Tensor& in) { return at::dropout(at::tanh(in), 0.5, true); };
  torch::manual_seed(4);
  const at::Tensor x = learning({64}), y = checkpointed(forward, x);
  const at::Tensor next = at::rand({2});
  std::thread([&] { y.sum().backward(); }).join();
  EXPECT_TRUE(x.grad().ne(0).equal(y.ne(0)));
  torch::manual_seed(4);
  learning({64});
  forward(x);
  EXPECT_TRUE(next.equal(at::rand({2})));
}

TEST(Checkpointed, IsPlainForwardWithoutRecording) {
  int runs = 0;
  const Forward forward = [&](const at::Tensor& in) {
    ++runs;
    return at::tanh(in);
  };
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(checkpointed(forward, learning({4}))->requires_grad());
  EXPECT_EQ(runs, 1);
}

TEST(Checkpointed, ReleasesEverythingWithDroppedGraph) {
  c10::weak_intrusive_ptr<c10::StorageImpl> kept = storage_of(at::rand({1}));
  {
    const at::Tensor x = learning({4}), middle = at::exp(x);
    kept = storage_of(middle);
    const at::Tensor y = checkpointed([](const at::Tensor& in) { return at::tanh(in); }, middle);
  }
  EXPECT_TRUE(is_gone(kept));
}

TEST(SameAgain, GivesSecondRunNumbersOfFirst) {
  std::uint64_t step = 1;
  std::vector<std::uint64_t> seen;
  const Forward inner = [&](const at::Tensor& x) {
    seen.push_back(same_again(step));
    return at::tanh(x * static_cast<double>(seen.back()));
  };
  const Forward outer = [&](const at::Tensor& x) {
    const double before = static_cast<double>(same_again(100 + step));
    return at::exp(checkpointed(inner, x * before / 100));
  };
  const at::Tensor x = learning({4}), y = checkpointed(outer, x);
  step = 2;
  y.sum().backward();
  EXPECT_EQ(seen, std::vector<std::uint64_t>(3, 1));
  EXPECT_EQ(same_again(step), 2u);
}

}  // namespace
}  // namespace trireme::model
