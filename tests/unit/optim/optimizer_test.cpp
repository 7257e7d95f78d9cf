#include "trireme/optim/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_svdvals.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/optim/grouped_optimizer.h"

namespace trireme::optim {
namespace {

using testing::HasSubstr;

/// A parameter with a value and a gradient.
at::Tensor parameter(double value, double gradient, std::vector<std::int64_t> sizes = {2}) {
  at::Tensor tensor = at::full(sizes, value).set_requires_grad(true);
  tensor.mutable_grad() = at::full(sizes, gradient);
  return tensor;
}

double value_of(const at::Tensor& tensor) { return tensor.flatten()[0].item<double>(); }

TEST(Sgd, FollowsItsEquation) {
  const at::Tensor weight = parameter(1, 0.5);
  const auto optimizer =
      make_optimizer({.name = "sgd", .lr = 0.1, .weight_decay = 0.1, .momentum = 0.9}, {{"w", weight}});
  // g = 0.5 + 0.1 * 1 = 0.6; v = 0.6; p = 1 - 0.1 * 0.6. Then g = 0.594, v = 0.54 + 0.594 = 1.134.
  optimizer->step();
  EXPECT_FLOAT_EQ(value_of(weight), 0.94F);
  optimizer->step();
  EXPECT_FLOAT_EQ(value_of(weight), 0.94F - 0.1134F);
  EXPECT_FLOAT_EQ(value_of(optimizer->state().at("momentum/w")), 1.134F);
}

TEST(Optimizer, WithoutMomentumHoldsNone) {
  for (const char* name : {"sgd", "lars"}) {
    const at::Tensor weight = parameter(1, 0.5);
    const auto optimizer = make_optimizer({.name = name, .lr = 1, .momentum = 0}, {{"w", weight}});
    optimizer->step();
    EXPECT_LT(value_of(weight), 1) << name;
    EXPECT_TRUE(optimizer->state().empty()) << name;
  }
  EXPECT_FALSE(make_optimizer({.name = "rmsprop", .momentum = 0}, {{"w", parameter(1, 1)}})
                   ->state()
                   .contains("momentum/w"));
}

TEST(AdamW, FirstStepMovesByRateAndDecay) {
  const at::Tensor weight = parameter(1, 0.5);
  const auto optimizer = make_optimizer({.name = "adamw", .lr = 0.01, .weight_decay = 0.1}, {{"w", weight}});
  optimizer->step();
  EXPECT_NEAR(value_of(weight), 1 - 0.01 * 0.1 - 0.01, 1e-6);
  EXPECT_EQ(optimizer->state().at("step/w").item<float>(), 1);
}

TEST(RmsProp, CenteredStaysFiniteOnConstantGradient) {
  constexpr double kRate = 1e-6;
  for (const auto& [type, rounding] :
       {std::pair(at::kFloat, 0x1p-23), std::pair(at::kDouble, 0x1p-52), std::pair(at::kBFloat16, 0.0)}) {
    const at::Tensor weight = at::full({100}, 1, type).set_requires_grad(true);
    weight.mutable_grad() = (at::arange(1, 101, at::kDouble) * 0.037).to(type);
    const auto optimizer =
        make_optimizer({.name = "rmsprop", .lr = kRate, .momentum = 0, .centered = true}, {{"w", weight}});
    at::Tensor before = weight.detach().clone();
    for (int i = 0; i < 2500; ++i) {
      optimizer->step();
      const double largest = (weight.detach() - before).abs().max().item<double>();
      ASSERT_TRUE(std::isfinite(largest)) << type << ", step " << i;
      // A deviation below its rounding error is replaced by that error.
      if (rounding > 0) {
        ASSERT_LT(largest, 1.1 * kRate / std::sqrt(rounding)) << type << ", step " << i;
      }
      before.copy_(weight.detach());
    }
  }
}

TEST(LarsAndLamb, TakeNormsBeyondSquareRange) {
  const auto moved = [](const char* name, double value, double gradient) {
    const at::Tensor weight = parameter(value, gradient);
    make_optimizer({.name = name, .lr = 0.5, .momentum = 0, .eps = 1e-6, .trust_coefficient = 0.1},
                   {{"w", weight}})
        ->step();
    return value_of(weight) / value;
  };
  EXPECT_NEAR(moved("lars", 1e25, 1e24), 1 - 0.5 * 0.1, 1e-4);
  EXPECT_NEAR(moved("lamb", 1e25, 1), 1 - 0.5, 1e-4);
}

TEST(Lion, MovesElementsByRateForAnyGradient) {
  const at::Tensor small = parameter(1, 1e-6), large = parameter(1, -1e6), none = parameter(1, 0);
  make_optimizer({.name = "lion", .lr = 0.125}, {{"small", small}, {"large", large}, {"none", none}})->step();
  EXPECT_EQ(value_of(small), 0.875);
  EXPECT_EQ(value_of(large), 1.125);
  EXPECT_EQ(value_of(none), 1);
}

TEST(Muon, MovesMatrixByOrthogonalOne) {
  for (const double size : {1e-3, 1e3}) {
    const at::Tensor weight = at::zeros({6, 3}).set_requires_grad(true);
    weight.mutable_grad() = at::arange(18, at::kFloat).square().view({6, 3}).cos() * size;
    make_optimizer({.name = "muon", .lr = 0.5, .weight_decay = 0, .momentum = 0, .muon_scale = "original"},
                   {{"w", weight}})
        ->step();
    // Five steps map singular values from 0.01 to 1 to about [0.68, 1.14]. The scale is sqrt(6 / 3).
    const at::Tensor moved = weight.detach() / (0.5 * std::sqrt(2.0));
    const at::Tensor values = at::linalg_svdvals(moved);
    EXPECT_GT(values.min().item<double>(), 0.65);
    EXPECT_LT(values.max().item<double>(), 1.2);
    EXPECT_LT((moved * weight.grad()).sum().item<double>(), 0) << "downhill";
  }
}

TEST(Muon, LeavesVectorsAndExclusionsToAdamW) {
  const at::Tensor matrix = parameter(1, 0.5, {2, 2}), bias = parameter(1, 0.5),
                   table = parameter(1, 0.5, {2, 2});
  const NamedTensors parameters = {{"fc.weight", matrix}, {"fc.bias", bias}, {"model.wte.weight", table}};
  const auto optimizer = make_optimizer({.name = "muon",
                                         .lr = 0.1,
                                         .weight_decay = 0.5,
                                         .momentum = 0.9,
                                         .nesterov = false,
                                         .muon_scale = "original",
                                         .muon_adamw_rate = 0.1},
                                        parameters);
  optimizer->step();
  for (const at::Tensor& rest : {bias, table}) EXPECT_NEAR(value_of(rest), 1 - 0.01 * 0.5 - 0.01, 1e-6);
  EXPECT_LT(value_of(matrix), 1 - 0.1 * 0.5 - 0.1 * 0.5 * 0.65);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : optimizer->state()) names.push_back(name);
  EXPECT_THAT(names, testing::UnorderedElementsAre(
                         "momentum/fc.weight", "exp_avg/fc.bias", "exp_avg_sq/fc.bias", "step/fc.bias",
                         "exp_avg/model.wte.weight", "exp_avg_sq/model.wte.weight", "step/model.wte.weight"));
}

TEST(Muon, TakesConvolutionAsMatrixOfFirstDim) {
  const at::Tensor gradient = at::arange(4 * 18, at::kFloat).sin();
  const auto stepped = [&](const std::vector<std::int64_t>& sizes, at::MemoryFormat format) {
    const at::Tensor weight = at::ones(sizes).contiguous(format).set_requires_grad(true);
    weight.mutable_grad() = gradient.view(sizes).contiguous(format);
    const auto optimizer = make_optimizer({.name = "muon", .nesterov = true}, {{"w", weight}});
    for (int i = 0; i < 3; ++i) optimizer->step();
    return weight.detach().flatten(1);
  };
  const at::Tensor matrix = stepped({4, 18}, at::MemoryFormat::Contiguous);
  EXPECT_TRUE(stepped({4, 2, 3, 3}, at::MemoryFormat::Contiguous).equal(matrix));
  EXPECT_TRUE(stepped({4, 2, 3, 3}, at::MemoryFormat::ChannelsLast).equal(matrix));
}

TEST(Muon, StaysWithoutGradientOfAnySize) {
  const at::Tensor still = parameter(1, 0, {3, 3});
  const at::Tensor empty = parameter(1, 0, {0, 3});
  make_optimizer({.name = "muon", .weight_decay = 0}, {{"still", still}, {"empty", empty}})->step();
  EXPECT_EQ(value_of(still), 1);
}

TEST(TrustRatio, IsOneWhereANormIsZero) {
  for (const char* name : {"lars", "lamb"}) {
    const at::Tensor fresh = parameter(0, 0.5), still = parameter(1, 0);
    make_optimizer({.name = name, .lr = 0.1}, {{"fresh", fresh}, {"still", still}})->step();
    EXPECT_LT(value_of(fresh), -0.04) << name << " starts to move from zeros";
    EXPECT_EQ(value_of(still), 1) << name;
  }
}

TEST(TrustRatio, ScalesLarsStepByNormOfTensor) {
  for (const double gradient : {1e-3, 1e3}) {
    const at::Tensor weight = parameter(2, gradient);
    make_optimizer({.name = "lars", .lr = 0.5, .trust_coefficient = 0.1}, {{"w", weight}})->step();
    EXPECT_NEAR(value_of(weight), 2 - 0.5 * 0.1 * 2, 1e-6);
  }
}

TEST(TrustRatio, CountsHalfPrecisionInF32) {
  // The norms are 131072: infinite as f16.
  const at::Tensor weight = at::full({4096}, 2048, at::kHalf).set_requires_grad(true);
  weight.mutable_grad() = at::full({4096}, 2048, at::kHalf);
  make_optimizer({.name = "lars", .lr = 1, .momentum = 0, .trust_coefficient = 0.5}, {{"w", weight}})->step();
  EXPECT_EQ(value_of(weight), 1024);
}

/// Every optimizer of the table, so that new rows are covered.
class EveryOptimizer : public testing::TestWithParam<std::string> {
 protected:
  /// All options that give an optimizer more state or more arithmetic.
  OptimizerOptions options() const {
    return {.name = GetParam(),
            .weight_decay = 0.1,
            .decay_1d = false,
            .momentum = 0.9,
            .nesterov = true,
            .beta2 = 0.9,  // a short memory, so that it matters within the test
            .centered = true};
  }
};
INSTANTIATE_TEST_SUITE_P(All, EveryOptimizer, testing::ValuesIn(optimizer_names()),
                         [](const auto& row) { return row.param; });

TEST_P(EveryOptimizer, KeepsParametersWithoutGradientAndAllGradients) {
  const at::Tensor used = parameter(1, 0.5);
  const at::Tensor unused = at::full({2}, 1.0).set_requires_grad(true);
  const auto optimizer =
      make_optimizer({.name = GetParam(), .weight_decay = 0.1}, {{"unused", unused}, {"used", used}});
  optimizer->step();
  EXPECT_EQ(value_of(unused), 1);
  EXPECT_NE(value_of(used), 1);
  EXPECT_EQ(value_of(used.grad()), 0.5);
  for (const auto& [name, tensor] : optimizer->state()) {
    EXPECT_EQ(tensor.count_nonzero().item<std::int64_t>() == 0, name.ends_with("/unused")) << name;
  }
  make_optimizer({.name = GetParam()}, {{"unused", unused}})->step();
  make_optimizer({.name = GetParam()}, {})->step();
}

TEST_P(EveryOptimizer, UsesRateOfOptionsUntilSet) {
  const auto stepped = [&](double of_options, const std::vector<double>& set) {
    const at::Tensor weight = at::ones({4, 2}).set_requires_grad(true);
    OptimizerOptions with_rate = options();
    with_rate.lr = of_options;
    const auto optimizer = make_optimizer(with_rate, {{"w", weight}});
    for (const double rate : set) {
      weight.mutable_grad() = at::full({4, 2}, 0.5);
      if (rate >= 0) optimizer->set_lr(rate);
      EXPECT_EQ(optimizer->lr(), rate >= 0 ? rate : of_options);
      optimizer->step();
    }
    return weight.detach();
  };
  constexpr double kAsItIs = -1;
  EXPECT_TRUE(stepped(0.25, {kAsItIs, kAsItIs}).equal(stepped(0.5, {0.25, 0.25})));
  EXPECT_TRUE(stepped(0.25, {0.125, 0.25}).equal(stepped(0.125, {kAsItIs, 0.25})));
  EXPECT_FALSE(stepped(0.25, {kAsItIs, kAsItIs}).equal(stepped(0.25, {kAsItIs, 0.5})));
}

template <class Any>
concept TakesARateInAStep = requires(Any& optimizer) {
  optimizer.step(0.1);
};
static_assert(!TakesARateInAStep<Optimizer>, "the rate is in one place");

TEST_P(EveryOptimizer, KeepsItsRateWhereAnotherIsRejected) {
  const auto optimizer = make_optimizer({.name = GetParam(), .lr = 0.25}, {{"w", parameter(1, 1)}});
  for (const double wrong : {-0.1, std::nan(""), HUGE_VAL})
    EXPECT_THAT([&] { optimizer->set_lr(wrong); },
                ThrowsMessage<InvalidArgument>(HasSubstr("expected a number of at least 0")));
  EXPECT_EQ(optimizer->lr(), 0.25);
}

TEST_P(EveryOptimizer, TrainsInTheTypeOfItsParameters) {
  for (const at::ScalarType type : {at::kDouble, at::kBFloat16}) {
    const at::Tensor weight = at::ones({4, 2}, type).set_requires_grad(true);
    weight.mutable_grad() = at::full({4, 2}, 0.5, type);
    OptimizerOptions strong = options();
    strong.trust_coefficient = 1;
    const auto optimizer = make_optimizer(strong, {{"w", weight}});
    optimizer->set_lr(0.0625);
    optimizer->step();
    EXPECT_LT(value_of(weight), 1);
    EXPECT_GT(value_of(weight), -1);
    EXPECT_EQ(weight.scalar_type(), type);
    for (const auto& [name, tensor] : optimizer->state())
      EXPECT_EQ(tensor.scalar_type(), name == "step/w" ? at::kFloat : type) << name;
  }
}

TEST_P(EveryOptimizer, GoesDownhill) {
  const at::Tensor weight = parameter(1, 0, {3, 2});
  OptimizerOptions mild = {
      .name = GetParam(), .momentum = 0.5, .trust_coefficient = 1, .muon_scale = "original"};
  const auto optimizer = make_optimizer(mild, {{"w", weight}});
  for (int i = 0; i < 100; ++i) {
    weight.mutable_grad() = 2 * weight.detach();  // of w^2
    optimizer->set_lr(0.02);
    optimizer->step();
  }
  EXPECT_LT(std::abs(value_of(weight)), 0.75);
}

/// Parameters of 1, 2 and no dimensions that train on gradients keyed by the step.
struct Training {
  explicit Training(const OptimizerOptions& options) : optimizer(make_optimizer(options, parameters)) {}

  void run(std::int64_t from, std::int64_t to) {
    for (std::int64_t step = from; step < to; ++step) {
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        at::Tensor& value = parameters[i].second;
        const double shift = static_cast<double>(step) + 0.3 * static_cast<double>(i);
        const bool missing = parameters[i].first == "late" && step < 3;
        value.mutable_grad() = missing ? at::Tensor() : (value.detach() * 3 + shift).sin();
      }
      optimizer->set_lr(0.01);
      optimizer->step();
    }
  }

  NamedTensors parameters = {{"weight", parameter(0.5, 0, {3, 4})},
                             {"bias", parameter(0.25, 0, {3})},
                             {"late", parameter(2, 0, {2, 2})},
                             {"scale", parameter(1, 0, {})}};
  std::unique_ptr<Optimizer> optimizer;
};

TEST_P(EveryOptimizer, RestoredStateContinuesBitForBit) {
  Training whole(options()), resumed(options());
  whole.run(0, 5);
  {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < whole.parameters.size(); ++i)
      resumed.parameters[i].second.copy_(whole.parameters[i].second);
    const auto saved = whole.optimizer->state();
    for (const auto& [name, tensor] : resumed.optimizer->state()) tensor.copy_(saved.at(name));
  }
  whole.run(5, 10);
  resumed.run(5, 10);
  for (std::size_t i = 0; i < whole.parameters.size(); ++i) {
    EXPECT_TRUE(whole.parameters[i].second.equal(resumed.parameters[i].second)) << whole.parameters[i].first;
  }
}

TEST_P(EveryOptimizer, Excluding1dDecaysLargerTensorsOnly) {
  const auto train = [&](double weight_decay) {
    OptimizerOptions changed = options();
    changed.weight_decay = weight_decay;
    Training training(changed);
    training.run(0, 6);
    return training.parameters;
  };
  const NamedTensors plain = train(0), decayed = train(0.5);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const auto& [name, tensor] = plain[i];
    EXPECT_EQ(tensor.equal(decayed[i].second), tensor.dim() <= 1) << name;
  }
}

TEST_P(EveryOptimizer, StateHasSameNamesForEitherDecay) {
  OptimizerOptions one_group = options();
  one_group.decay_1d = true;
  const auto names_of = [](const OptimizerOptions& options) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : Training(options).optimizer->state()) names.push_back(name);
    return names;
  };
  EXPECT_FALSE(names_of(options()).empty());
  EXPECT_EQ(names_of(one_group), names_of(options()));
}

TEST(TrustRatio, IsOneFor1dWithoutTheirDecay) {
  const auto moved = [](const char* name, bool decay_1d) {
    const at::Tensor bias = parameter(1e-3, 0.5);
    make_optimizer({.name = name, .lr = 0.1, .decay_1d = decay_1d, .momentum = 0, .eps = 1e-8}, {{"b", bias}})
        ->step();
    return 1e-3 - value_of(bias);
  };
  EXPECT_NEAR(moved("lars", false), 0.1 * 0.5, 1e-6) << "a step of sgd";
  EXPECT_NEAR(moved("lamb", false), 0.1, 1e-7) << "a first step of adam, bias corrected in f64";
  EXPECT_NEAR(moved("lars", true), 0.1 * 0.001 * 1e-3, 1e-9);
  EXPECT_NEAR(moved("lamb", true), 0.1 * 1e-3, 1e-7);
}

/// Counts its calls.
class CountingRule : public UpdateRule {
 public:
  explicit CountingRule(std::vector<GroupSettings>& calls) : calls_(calls) {}
  std::vector<StateTensor> states() const override { return {{.name = "seen"}}; }
  void update(UpdateLists& lists, const GroupSettings& group, double) const override {
    calls_.push_back(group);
    for (const at::Tensor& seen : lists.states[0]) seen.add_(1);
  }

 private:
  std::vector<GroupSettings>& calls_;
};

TEST(GroupedOptimizer, CallsCustomRuleOncePerGroup) {
  const NamedTensors parameters = {{"bias", parameter(1, 1)}, {"weight", parameter(1, 1, {2, 2})}};
  const auto calls_with = [&](bool decay_1d, const NamedTensors& with) {
    std::vector<GroupSettings> calls;
    GroupedOptimizer optimizer(std::make_unique<CountingRule>(calls),
                               {.weight_decay = 0.5, .decay_1d = decay_1d}, with);
    optimizer.step();
    for (const auto& [name, seen] : optimizer.state()) EXPECT_EQ(value_of(seen), 1) << name;
    return calls;
  };
  const auto one = calls_with(true, parameters), two = calls_with(false, parameters);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].weight_decay, 0.5);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_TRUE(two[0].weight_decay == 0.5 && two[0].adaptive);
  EXPECT_TRUE(two[1].weight_decay == 0 && !two[1].adaptive);
  EXPECT_EQ(calls_with(false, {parameters[0]}).size(), 1u);
}

struct BadOptions {
  OptimizerOptions options;
  const char* message;
};

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

const BadOptions kBadOptions[] = {
    {{.name = "adan"}, "unknown optimizer 'adan' (did you mean 'adam'?)"},
    {{.lr = -1}, "the lr of sgd must be a number of at least 0, not -1"},
    {{.name = "lamb", .weight_decay = -0.5},
     "the weight_decay of lamb must be a number of at least 0, not -0.5"},
    {{.name = "lion", .weight_decay = kNan},
     "the weight_decay of lion must be a number of at least 0, not nan"},
    {{.momentum = 1}, "the momentum of sgd must be in [0, 1), not 1"},
    {{.momentum = 0, .nesterov = true}, "the momentum of sgd must be above 0 with nesterov, not 0"},
    {{.name = "rmsprop", .momentum = -0.1}, "the momentum of rmsprop must be in [0, 1), not -0.1"},
    {{.name = "lars", .momentum = kNan}, "the momentum of lars must be in [0, 1), not nan"},
    {{.name = "adam", .beta1 = 1.5}, "the beta1 of adam must be in [0, 1), not 1.5"},
    {{.name = "adamw", .beta2 = 1}, "the beta2 of adamw must be in [0, 1), not 1"},
    {{.name = "lion", .beta1 = 1}, "the beta1 of lion must be in [0, 1), not 1"},
    {{.name = "lion", .beta2 = -1}, "the beta2 of lion must be in [0, 1), not -1"},
    {{.name = "lamb", .beta1 = 1}, "the beta1 of lamb must be in [0, 1), not 1"},
    {{.name = "lamb", .beta2 = 1}, "the beta2 of lamb must be in [0, 1), not 1"},
    {{.name = "rmsprop", .alpha = 1}, "the alpha of rmsprop must be in [0, 1), not 1"},
    {{.name = "adamw", .eps = 0}, "the eps of adamw must be a number above 0, not 0"},
    {{.name = "adagrad", .eps = -1}, "the eps of adagrad must be a number above 0, not -1"},
    {{.name = "rmsprop", .eps = 0}, "the eps of rmsprop must be a number above 0, not 0"},
    {{.name = "lamb", .eps = 0}, "the eps of lamb must be a number above 0, not 0"},
    {{.name = "muon", .momentum = 1}, "the momentum of muon must be in [0, 1), not 1"},
    {{.name = "muon", .beta2 = 1}, "the beta2 of muon must be in [0, 1), not 1"},
    {{.name = "muon", .muon_scale = "orginal"}, "unknown muon_scale 'orginal' (did you mean 'original'?)"},
    {{.name = "muon", .muon_spares = {"wte", ""}}, "an empty text in muon_spares is in every name"},
    {{.name = "muon", .muon_adamw_rate = -1},
     "the muon_adamw_rate of muon must be a number of at least 0, not -1"},
    {{.name = "lars", .trust_coefficient = 0},
     "the trust_coefficient of lars must be a number above 0, not 0"},
};

TEST(Optimizer, RejectsBadOptionsWithNameValueRange) {
  for (const BadOptions& bad : kBadOptions) {
    EXPECT_THAT([&] { make_optimizer(bad.options, {}); },
                testing::ThrowsMessage<InvalidArgument>(HasSubstr(bad.message)));
  }
}

}  // namespace
}  // namespace trireme::optim
