// A module that changes after it was wrapped. requires_grad may change if all ranks change it alike. Any
// other change is rejected with the name of the parameter.
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "tests/unit/parallel/data_parallel_case.h"

namespace trireme::parallel {
namespace {

at::Tensor loss_of_step(TwoLayers& model, int rank, int step) {
  return model.forward(numbers({6, 4}, 3 + 10 * step + rank)).square().mean();
}

void let_learn(torch::nn::Module& module, bool learns) {
  for (at::Tensor& parameter : module.parameters()) parameter.requires_grad_(learns);
}

/// Changes the model before each step.
using ChangeOfModel = std::function<void(TwoLayers& model, int step)>;

/// Values of all parameters after steps on the samples of all ranks.
std::vector<at::Tensor> weights_of_one_process(int ranks, int steps, const ChangeOfModel& change) {
  const auto model = model_without_norm();
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < steps; ++step) {
    change(*model, step);
    sgd.zero_grad();
    for (int rank = 0; rank < ranks; ++rank) (loss_of_step(*model, rank, step) / ranks).backward();
    sgd.step();
  }
  return model->parameters();
}

void expect_steps_of_one_process(const DataParallelOptions& options, const ChangeOfModel& change,
                                 int passes = 1) {
  constexpr int kRanks = 2, kSteps = 9;
  const auto expected = weights_of_one_process(kRanks, kSteps, change);
  run_ranks_as_threads(
      kRanks,
      [&](Context& context) {
        const auto model = model_without_norm();
        DistributedDataParallel ddp(context, model, options);
        torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
        for (int step = 0; step < kSteps; ++step) {
          change(*model, step);
          sgd.zero_grad();
          {
            const auto quiet = ddp.no_sync();
            for (int pass = 1; pass < passes; ++pass)
              (loss_of_step(*model, context.rank(), step) / passes).backward();
          }
          (loss_of_step(*model, context.rank(), step) / passes).backward();
          sgd.step();
        }
        const auto parameters = model->parameters();
        for (std::size_t i = 0; i < expected.size(); ++i)
          EXPECT_LE((parameters[i] - expected[i]).abs().max().item<double>(), 1e-5) << "parameter " << i;
      },
      kDeadline);
}

struct Changing {
  const char* name;
  ChangeOfModel change;
};

const std::vector<Changing> kChanges = {
    {"FrozenFirst",
     [](TwoLayers& model, int step) {
       if (step == 0 || step == 4) let_learn(*model.first, step == 4);
     }},
    {"FrozenLater",
     [](TwoLayers& model, int step) {
       if (step == 4) let_learn(*model.first, false);
     }},
    {"OneAfterTheOther",
     [](TwoLayers& model, int step) {
       let_learn(*model.first, step >= 3);
       let_learn(*model.second, step < 3);
     }},
    {"InTurns",
     [](TwoLayers& model, int step) {
       let_learn(*model.first, step % 2 == 0);
       let_learn(*model.second, step % 2 != 0);
     }},
    {"OneParameterAtATime",
     [](TwoLayers& model, int step) {
       model.first->weight.requires_grad_(step >= 2);
       model.first->bias.requires_grad_(step >= 4);
       model.second->bias.requires_grad_(step < 6);
     }},
};

class ChangedModules : public testing::TestWithParam<Changing> {
 public:
  /// The first change is applied before the model is wrapped.
  static ChangeOfModel change() { return GetParam().change; }
};

TEST_P(ChangedModules, TrainAsOneProcessDoes) {
  for (const double bucket_mib : {1e-5, 25.0})
    expect_steps_of_one_process({.bucket_mib = bucket_mib, .first_bucket_mib = bucket_mib}, change());
}

TEST_P(ChangedModules, TrainSoWithPassesUnderNoSync) { expect_steps_of_one_process({}, change(), 3); }

TEST_P(ChangedModules, TrainSoWhereUnusedParametersAreFound) {
  for (const auto unused : {UnusedParameters::kFind, UnusedParameters::kStatic})
    expect_steps_of_one_process({.unused_parameters = unused}, change());
}

INSTANTIATE_TEST_SUITE_P(Changes, ChangedModules, testing::ValuesIn(kChanges),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ChangedModule, ChangeOnOneRankFailsAll) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        const auto model = model_without_norm();
        DistributedDataParallel ddp(context, model);
        loss_of_step(*model, context.rank(), 0).backward();
        if (context.rank() == 1) let_learn(*model->first, false);
        EXPECT_THROW(loss_of_step(*model, context.rank(), 1).backward(), CommError);
      },
      kDeadline);
}

TEST(ChangedModule, DifferentChangesNameTheParameter) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        const auto model = model_without_norm();
        DistributedDataParallel ddp(context, model);
        loss_of_step(*model, context.rank(), 0).backward();
        (context.rank() == 1 ? model->first : model->second)->bias.requires_grad_(false);
        EXPECT_THAT(
            [&] { loss_of_step(*model, context.rank(), 1).backward(); },
            testing::ThrowsMessage<CommError>(AllOf(HasSubstr("parameter 'first.bias'"),
                                                    HasSubstr("freeze, unfreeze or convert on every rank"))));
      },
      kDeadline);
}

/// Changes that are rejected, and a part of the message.
struct RejectedChange {
  const char* name;
  std::function<void(TwoLayers& model)> change;
  const char* message;
};

const std::vector<RejectedChange> kRejected = {
    {"AnotherType", [](TwoLayers& model) { model.to(at::kDouble); },
     "parameter 'first.weight' is (5, 4) f64 on cpu, and was (5, 4) f32 on cpu"},
    {"AnotherTypeOfALayer", [](TwoLayers& model) { model.second->to(at::kBFloat16); },
     "parameter 'second.weight' is (3, 5) bf16 on cpu"},
    {"Added", [](TwoLayers& model) { model.register_module("adapter", torch::nn::Linear(3, 3)); },
     "parameter 'adapter.weight' was registered after"},
    {"Replaced", [](TwoLayers& model) { model.replace_module("second", torch::nn::Linear(5, 3)); },
     "parameter 'second.weight' was replaced"},
    {"Removed", [](TwoLayers& model) { model.unregister_module("norm"); },
     "parameter 'norm.weight' was removed"},
    {"AnotherShape",
     [](TwoLayers& model) {
       model.first->bias.set_data(numbers({1, 5}, 1));
     },
     "parameter 'first.bias' is (1, 5) f32 on cpu, and was (5) f32 on cpu"},
};

class RejectedChanges : public testing::TestWithParam<RejectedChange> {};

at::Tensor loss_of_any_type(TwoLayers& model, int rank) {
  const at::Tensor hidden =
      model.first->forward(numbers({6, 4}, rank).to(model.first->weight.scalar_type())).tanh();
  return model.second->forward(hidden.to(model.second->weight.scalar_type())).square().mean();
}

TEST_P(RejectedChanges, AreNamedByTheNextBackwardPass) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        const auto model = model_without_norm();
        DistributedDataParallel ddp(context, model);
        for (int step = 0; step < 2; ++step) {
          model->zero_grad();
          loss_of_any_type(*model, context.rank()).backward();
        }
        model->zero_grad();
        GetParam().change(*model);
        EXPECT_THAT([&] { loss_of_any_type(*model, context.rank()).backward(); },
                    testing::ThrowsMessage<InvalidArgument>(
                        AllOf(HasSubstr(GetParam().message), HasSubstr("make a new one after the change"))));
      },
      kDeadline);
}

TEST_P(RejectedChanges, AreNamedByZeroGradAndAccumulation) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        const auto model = model_without_norm();
        DistributedDataParallel ddp(context, model);
        loss_of_any_type(*model, context.rank()).backward();
        GetParam().change(*model);
        const auto rejected = testing::ThrowsMessage<InvalidArgument>(HasSubstr(GetParam().message));
        EXPECT_THAT([&] { ddp.zero_grad(); }, rejected);
        model->zero_grad();
        const auto quiet = ddp.no_sync();
        EXPECT_THAT([&] { loss_of_any_type(*model, context.rank()).backward(); }, rejected);
      },
      kDeadline);
}

INSTANTIATE_TEST_SUITE_P(Changes, RejectedChanges, testing::ValuesIn(kRejected),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ChangedModule, ANewWrapperTakesTheConvertedModule) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        const auto model = model_without_norm();
        {
          DistributedDataParallel before(context, model);
          loss_of_any_type(*model, context.rank()).backward();
        }
        model->zero_grad();
        model->to(at::kDouble);
        DistributedDataParallel after(context, model);
        loss_of_any_type(*model, context.rank()).backward();
        EXPECT_EQ(model->first->weight.grad().scalar_type(), at::kDouble);
      },
      kDeadline);
}

TEST(ChangedModule, NamesFreezingBetweenPassAndReduction) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        const auto model = model_without_norm();
        DistributedDataParallel ddp(context, model);
        {
          const auto quiet = ddp.no_sync();
          loss_of_step(*model, context.rank(), 0).backward();
        }
        model->first->bias.requires_grad_(false);
        EXPECT_THAT([&] { loss_of_step(*model, context.rank(), 1).backward(); },
                    testing::ThrowsMessage<InvalidArgument>(
                        AllOf(HasSubstr("parameter 'first.bias' was frozen"), HasSubstr("no_sync()"))));
      },
      kDeadline);
}

TEST(ChangedModule, FreezingBetweenForwardAndBackwardIsNamed) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        const auto model = model_without_norm();
        DistributedDataParallel ddp(context, model);
        const at::Tensor loss = loss_of_step(*model, context.rank(), 0);
        model->first->bias.requires_grad_(false);
        EXPECT_THAT([&] { loss.backward(); },
                    testing::ThrowsMessage<InvalidArgument>(AllOf(
                        HasSubstr("parameter 'first.bias'"), HasSubstr("between forward and backward"))));
      },
      kDeadline);
}

/// A submodule that two models share.
struct WithEncoder : torch::nn::Module {
  explicit WithEncoder(torch::nn::Linear the_encoder)
      : encoder(register_module("encoder", the_encoder)),
        head(register_module("head", torch::nn::Linear(5, 3))) {
    test::fill_parameters(*this);
  }
  at::Tensor loss(int rank) { return head(encoder(numbers({6, 4}, rank)).tanh()).square().mean(); }
  torch::nn::Linear encoder, head;
};

TEST(ChangedModule, AFrozenPartMayBeShared) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        torch::nn::Linear encoder(4, 5);
        let_learn(*encoder, false);
        const auto one = std::make_shared<WithEncoder>(encoder), two = std::make_shared<WithEncoder>(encoder);
        DistributedDataParallel of_one(context, one), of_two(context, two);
        for (const auto& model : {one, two}) model->loss(context.rank()).backward();
        let_learn(*encoder, true);
        DistributedDataParallel of_encoder(context, encoder.ptr());
        encoder->forward(numbers({6, 4}, context.rank())).square().mean().backward();
        EXPECT_EQ(of_encoder.statistics().reductions, 1u);
        EXPECT_EQ(of_one.statistics().reductions, 1u);
      },
      kDeadline);
}

}  // namespace
}  // namespace trireme::parallel
