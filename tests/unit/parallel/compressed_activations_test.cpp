// Compressed activations: the rounding error of each tensor. A pipeline of any schedule has the gradients of
// a serial program that rounds at the same places with the same random numbers.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include <limits>
#include <map>
#include <mutex>

#include "tests/unit/parallel/small_models.h"
#include "tests/unit/parallel/stage_layers.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/parallel/pipeline/internal/edge_codec.h"
#include "trireme/parallel/pipeline/pipeline.h"
#include "trireme/schedule/schedule_table.h"

namespace trireme::parallel {
namespace {

using test::numbers;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int kLayers = 8, kWidth = 24, kMicrobatches = 8, kBatch = 24;
constexpr std::int64_t kBlock = 512;

at::Tensor there_and_back(const EdgeCodec& codec, const at::Tensor& tensor, std::uint64_t seed = 7) {
  const at::Tensor message = codec.encode(tensor, seed);
  EXPECT_EQ(message.sizes(), codec.room_for(spec_of(tensor)).sizes());
  EXPECT_EQ(message.scalar_type(), codec.room_for(spec_of(tensor)).scalar_type());
  return codec.decode(message, spec_of(tensor));
}

/// The largest magnitude of each element's block.
at::Tensor greatest_of_blocks(const at::Tensor& values) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& block : values.flatten().abs().split(kBlock))
    parts.push_back(block.max().expand({block.numel()}));
  return at::cat(parts).reshape(values.sizes());
}

TEST(EdgeCodec, EightBitsStayWithinBlockStep) {
  const EdgeCodec codec({.format = ActivationFormat::kInt8}, at::kCPU);
  // Blocks of very different sizes, the last one short.
  at::Tensor values = numbers({3, 700}, 1) * numbers({3, 700}, 5).mul(20).exp();
  values.flatten().narrow(0, 0, kBlock).mul_(1e-6);
  const at::Tensor error = (there_and_back(codec, values) - values).abs();
  // One quantization step, plus the rounding of its products in f32.
  EXPECT_TRUE((error <= greatest_of_blocks(values) * (1.0 / 127 + 1e-6)).all().item<bool>());
  EXPECT_GT(error.max().item<float>(), 0);
}

TEST(EdgeCodec, OfEightBitsHasNoBias) {
  const EdgeCodec codec({.format = ActivationFormat::kInt8}, at::kCPU);
  const at::Tensor values = numbers({kBlock}, 3);
  at::Tensor sum = at::zeros_like(values);
  constexpr int kDraws = 4000;
  for (int draw = 0; draw < kDraws; ++draw) sum += there_and_back(codec, values, draw);
  // A step is 1/127, and its variance is at most a quarter of its square. The bound is six deviations of the
  // mean of 4000.
  const double bound = 6.0 / 127 / 2 / std::sqrt(kDraws);
  EXPECT_LT((sum / kDraws - values).abs().max().item<double>(), bound);
}

TEST(EdgeCodec, ShortFloatsAreWithinHalfUnit) {
  const at::Tensor values = numbers({40, 50}, 2);
  for (const auto& [name, bound] : {std::pair{"bf16", 0x1p-8}, std::pair{"fp16", 0x1p-11}}) {
    const EdgeCodec codec({.format = activation_format_of(name)}, at::kCPU);
    const at::Tensor error = (there_and_back(codec, values) - values).abs();
    EXPECT_TRUE((error <= values.abs() * bound + 0x1p-25).all().item<bool>()) << name;
    EXPECT_GT(error.max().item<float>(), 0) << name;
  }
}

TEST(EdgeCodec, ShortFloatsInEightBitsKeepType) {
  const EdgeCodec codec({.format = ActivationFormat::kInt8}, at::kCPU);
  const at::Tensor values = numbers({40, 50}, 2);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor sent = values.to(type), found = there_and_back(codec, sent);
    EXPECT_EQ(found.scalar_type(), type);
    const at::Tensor error = (found.to(at::kFloat) - sent.to(at::kFloat)).abs();
    // One more rounding to the format.
    EXPECT_LE(error.max().item<double>(), 1.0 / 127 + 0x1p-8);
  }
}

TEST(EdgeCodec, HidesNothingThatIsNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const char* name : {"bf16", "fp16", "int8"}) {
    at::Tensor values = numbers({2000}, 4);
    values[3] = std::numeric_limits<float>::quiet_NaN();
    values[900] = -infinity;
    const at::Tensor found =
        there_and_back(EdgeCodec({.format = activation_format_of(name)}, at::kCPU), values);
    EXPECT_TRUE(found.isfinite().equal(values.isfinite())) << name;
  }
}

TEST(EdgeCodec, KeepsSmallTensorsAndIntegers) {
  const auto encodes = [](const char* name, std::int64_t numel, at::ScalarType type) {
    return EdgeCodec({.format = activation_format_of(name)}, at::kCPU)
        .encodes({.sizes = {numel}, .type = type});
  };
  EXPECT_TRUE(encodes("int8", 1024, at::kFloat));
  EXPECT_FALSE(encodes("int8", 1023, at::kFloat));
  for (const at::ScalarType type : {at::kLong, at::kInt, at::kBool, at::kByte, at::kDouble}) {
    for (const char* name : {"bf16", "fp16", "int8"}) EXPECT_FALSE(encodes(name, 4096, type)) << type;
  }
  EXPECT_TRUE(encodes("int8", 4096, at::kBFloat16));
  EXPECT_FALSE(encodes("bf16", 4096, at::kBFloat16)) << "it would be no less";
  EXPECT_FALSE(encodes("none", 4096, at::kFloat));
  EXPECT_THAT([] { activation_format_of("int9"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("no format of activations 'int9'")));
}

std::vector<model::Layer> chain() {
  std::vector<model::Layer> layers;
  for (int i = 0; i < kLayers; ++i) {
    torch::nn::Linear linear(kWidth, kWidth);
    test::fill_parameters(*linear, i);
    const auto module = std::make_shared<test::Module>();
    module->register_module("inner", linear);
    layers.push_back(model::make_layer(
        *module, text("layer", i), {module},
        [module, linear](const at::Tensor& x) mutable { return linear->forward(x).tanh(); }));
    for (auto& [name, parameter] : layers.back().parameters) name = text(i, ".", name);
  }
  return layers;
}

at::Tensor inputs() { return numbers({kBatch, kWidth}, 11); }
at::Tensor targets() { return numbers({kBatch, kWidth}, 12); }

using GradientsByName = std::map<std::string, at::Tensor>;

struct RoundedPass {
  double loss = 0;
  GradientsByName gradients;
  std::vector<std::int64_t> sent;  ///< by rank
  std::vector<Pipeline::StageLayers> stages;
  schedule::Program program;
};

ActivationCompression activations(const std::string& name, std::uint64_t seed = 5) {
  return {.format = activation_format_of(name), .seed = seed, .min_numel = 1};
}

/// The result of the second step, because the random numbers depend on the step.
RoundedPass in_pipeline(int ranks, const std::string& schedule, const ActivationCompression& compression) {
  RoundedPass outcome;
  outcome.sent.resize(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
    const std::vector<model::Layer> layers = chain();
    Pipeline pipe(context, layers,
                  {.schedule = schedule, .num_microbatches = kMicrobatches, .activations = compression});
    pipe.step(inputs(), targets(), test::mean_square);
    pipe.zero_grad();
    const std::int64_t sent_before = pipe.sent_bytes();
    const double loss = pipe.step(inputs(), targets(), test::mean_square);
    const std::lock_guard lock(mutex);
    outcome.loss = loss;
    outcome.stages = pipe.stages();
    outcome.program = pipe.program();
    outcome.sent[static_cast<std::size_t>(context.rank())] = pipe.sent_bytes() - sent_before;
    for (const auto& [name, parameter] : pipe.parameters())
      outcome.gradients[name] = parameter.grad().clone();
  });
  return outcome;
}

/// One rank that rounds at the boundaries of the pipeline's ranks, micro-batch by micro-batch.
class RoundingProgram {
 public:
  RoundingProgram(const RoundedPass& of, const ActivationCompression& compression)
      : of_(of),
        codec_(compression, at::kCPU),
        seed_(Random(compression.seed, Random::key_of("activations"), 0).bits()) {
    for (std::size_t rank = 0; rank < of.program.ranks.size(); ++rank) {
      for (const schedule::Action& action : of.program.ranks[rank]) {
        if (action.kind == schedule::ActionKind::kForward)
          runs_on_[{action.stage, action.microbatch}] = static_cast<int>(rank);
      }
    }
  }

  GradientsByName step(std::uint64_t number) {
    const auto in = inputs().tensor_split(kMicrobatches), out = targets().tensor_split(kMicrobatches);
    for (int m = 0; m < kMicrobatches; ++m) {
      const auto place = static_cast<std::size_t>(m);
      run(number, m, in[place], out[place]);
    }
    GradientsByName gradients;
    for (const model::Layer& layer : layers_) {
      for (const auto& [name, parameter] : layer.parameters) gradients[name] = parameter.grad();
    }
    return gradients;
  }

 private:
  at::Tensor rounded(const at::Tensor& tensor, std::uint64_t number, int m, int stage, bool forward) const {
    const int next = forward ? stage + 1 : stage - 1;
    if (runs_on_.at({stage, m}) == runs_on_.at({next, m})) return tensor.detach().clone();
    const std::uint64_t of_message = Random(seed_, number, m, stage, forward).bits();
    return there_and_back(codec_, tensor.detach(), Random(of_message, 0).bits());
  }

  void run(std::uint64_t number, int m, const at::Tensor& input, const at::Tensor& target) {
    const int last = static_cast<int>(of_.stages.size()) - 1;
    std::vector<at::Tensor> came(of_.stages.size()), went(of_.stages.size());
    for (int stage = 0; stage <= last; ++stage) {
      const auto s = static_cast<std::size_t>(stage);
      came[s] = stage == 0 ? input : rounded(went[s - 1], number, m, stage - 1, true).requires_grad_(true);
      went[s] = came[s];
      for (int i = of_.stages[s].first; i < of_.stages[s].last; ++i)
        went[s] = at::Tensor(layers_[static_cast<std::size_t>(i)].forward(went[s]));
    }
    const double weight = static_cast<double>(input.size(0)) / kBatch;
    test::mean_square(went.back(), target).backward(at::full({}, weight));
    for (int stage = last; stage > 0; --stage) {
      const auto s = static_cast<std::size_t>(stage);
      went[s - 1].backward(rounded(came[s].grad(), number, m, stage, false));
    }
  }

  const RoundedPass& of_;
  const EdgeCodec codec_;
  const std::uint64_t seed_;
  std::map<std::pair<int, int>, int> runs_on_;
  const std::vector<model::Layer> layers_ = chain();
};

double farthest(const GradientsByName& found, const GradientsByName& expected) {
  double most = 0;
  for (const auto& [name, gradient] : expected)
    most = std::max(most, (found.at(name) - gradient).abs().max().item<double>());
  return most;
}

std::vector<std::string> synchronous_schedules() {
  std::vector<std::string> names;
  for (const schedule::ScheduleRow& row : schedule::schedules()) {
    if (!row.asynchronous) names.emplace_back(row.name);
  }
  return names;
}

class CompressedActivations : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Schedules, CompressedActivations, testing::ValuesIn(synchronous_schedules()),
                         [](const auto& row) {
                           std::string name = row.param;
                           for (char& letter : name) letter = letter == '-' ? '_' : letter;
                           return name;
                         });

TEST_P(CompressedActivations, MatchOneRankWithSameRounding) {
  for (const int ranks : {2, 4}) {
    for (const char* name : {"bf16", "fp16", "int8"}) {
      SCOPED_TRACE(text(ranks, " ranks, ", name));
      const RoundedPass found = in_pipeline(ranks, GetParam(), activations(name));
      // Eight summands, added in another order.
      EXPECT_LT(farthest(found.gradients, RoundingProgram(found, activations(name)).step(2)), 1e-7);
    }
  }
}

TEST(CompressedActivation, DrawsAnewPerStepAndSeed) {
  const RoundedPass found = in_pipeline(2, "1f1b", activations("int8"));
  EXPECT_EQ(farthest(in_pipeline(2, "1f1b", activations("int8")).gradients, found.gradients), 0);
  EXPECT_EQ(farthest(found.gradients, RoundingProgram(found, activations("int8")).step(2)), 0);
  EXPECT_GT(farthest(found.gradients, RoundingProgram(found, activations("int8")).step(1)), 0);
  EXPECT_GT(farthest(found.gradients, in_pipeline(2, "1f1b", activations("int8", 6)).gradients), 0);
}

TEST(CompressedActivation, HasBytesOfItsFormat) {
  // Three rows for each of eight micro-batches. Activations are sent one way and gradients the other.
  constexpr std::int64_t kValues = kBatch * kWidth;
  const auto sent = [](const char* name) { return in_pipeline(2, "1f1b", activations(name)).sent; };
  EXPECT_THAT(sent("none"), testing::ElementsAre(4 * kValues, 4 * kValues));
  EXPECT_THAT(sent("bf16"), testing::ElementsAre(2 * kValues, 2 * kValues));
  const std::int64_t in_int8 = kValues + kMicrobatches * 4;  // one block for each micro-batch
  EXPECT_THAT(sent("int8"), testing::ElementsAre(in_int8, in_int8));
}

TEST(CompressedActivation, RejectsDifferentRanksBeforeFirstStep) {
  EXPECT_THAT(
      [] {
        comm::run_ranks_as_threads(2, [](comm::Context& context) {
          const Pipeline pipe(
              context, chain(),
              {.num_microbatches = 2, .activations = activations(context.rank() == 0 ? "int8" : "bf16")});
        });
      },
      ThrowsMessage<InvalidArgument>(testing::AllOf(HasSubstr("ranks have different pipelines"),
                                                    HasSubstr("activations travel as int8"))));
}

/// The mask of 0 and minus infinity that is sent as well has no gradient.
TEST(CompressedActivation, TensorsWithoutGradientStayUncompressed) {
  constexpr std::int64_t kRows = 4;
  const float infinity = std::numeric_limits<float>::infinity();
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const auto module = std::make_shared<test::Module>();
    torch::nn::Linear first(kWidth, kWidth), second(kWidth, kWidth);
    module->register_module("first", first);
    module->register_module("second", second);
    test::fill_parameters(*module);
    const model::Layer one =
        model::make_layer(*module, "one", {first.ptr()}, [first](const model::Tensors& x) mutable {
          return model::Tensors{first->forward(x[0]), x[0].gt(0).to(at::kFloat).log()};
        });
    const model::Layer two =
        model::make_layer(*module, "two", {second.ptr()}, [=](const model::Tensors& x) mutable {
          EXPECT_TRUE(x[1].eq(0).logical_or(x[1].eq(-infinity)).all().item<bool>());
          return model::Tensors{second->forward(x[0])};
        });
    Pipeline pipe(context, {one, two}, {.num_microbatches = 2, .activations = activations("int8")});
    const at::Tensor input = numbers({kRows, kWidth}, 1);
    EXPECT_TRUE(std::isfinite(pipe.step(input, input, test::mean_square)));
  });
}

}  // namespace
}  // namespace trireme::parallel
