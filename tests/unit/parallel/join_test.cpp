// Uneven inputs of several models in one loop, actions that happen once per step, and uses that a Join
// excludes.
#include <torch/optim/sgd.h>

#include <memory>

#include "tests/unit/parallel/data_parallel_case.h"

namespace trireme::parallel {
namespace {

using Join = DistributedDataParallel::Join;

constexpr int kJoinRanks = 3;

int join_batches_of(int rank) { return 2 + 2 * rank; }
constexpr int kJoinSteps = 2 + 2 * (kJoinRanks - 1);

at::Tensor loss_with_scale(TwoLayers& model, int rank, int step, double scale) {
  return model.forward(numbers({6, 4}, 10 * step + rank)).square().mean() * scale;
}

/// A model, its optimizer, and its learning rate, which falls with each step.
struct JoinLearner {
  explicit JoinLearner(double the_scale) : scale(the_scale) {}
  void update() {
    sgd.step();
    sgd.zero_grad();
  }
  void lower_lr() {
    static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options()).lr(0.1 / ++steps);
  }
  double scale;
  int steps = 1;
  std::shared_ptr<TwoLayers> model = model_without_norm();
  torch::optim::SGD sgd{model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)};
};

/// The weights of one process after the batches of all ranks. Missing batches count as zeros.
std::vector<at::Tensor> weights_of_one_learner(double scale) {
  JoinLearner learner(scale);
  for (int step = 0; step < kJoinSteps; ++step) {
    for (int rank = 0; rank < kJoinRanks; ++rank) {
      if (step < join_batches_of(rank))
        (loss_with_scale(*learner.model, rank, step, scale) / kJoinRanks).backward();
    }
    learner.update();
    learner.lower_lr();
  }
  return learner.model->parameters();
}

void expect_weights(const TwoLayers& model, const std::vector<at::Tensor>& expected) {
  const auto parameters = model.parameters();
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_LE((parameters[i] - expected[i]).abs().max().item<double>(), 1e-5) << "parameter " << i;
}

// Both have gradients of the same sizes.
TEST(Join, TrainsTwoModelsLikeOneProcess) {
  const auto expected_one = weights_of_one_learner(1), expected_two = weights_of_one_learner(-0.5);
  run_ranks_as_threads(
      kJoinRanks,
      [&](Context& context) {
        JoinLearner one(1), two(-0.5);
        DistributedDataParallel of_one(context, one.model), of_two(context, two.model);
        Join join({{of_one, [&] { one.update(); }}, {of_two, [&] { two.update(); }}});
        join.after_step([&] {
          one.lower_lr();
          two.lower_lr();
        });
        int step = 0;
        while (join.next(step < join_batches_of(context.rank()))) {
          for (JoinLearner* each : {&one, &two}) {
            loss_with_scale(*each->model, context.rank(), step, each->scale).backward();
            each->update();
          }
          ++step;
        }
        EXPECT_EQ(step, join_batches_of(context.rank()));
        EXPECT_EQ(join.steps(), kJoinSteps);
        EXPECT_EQ(one.steps, kJoinSteps + 1);
        expect_weights(*one.model, expected_one);
        expect_weights(*two.model, expected_two);
      },
      kDeadline);
}

TEST(Join, RanksAdoptModelsOfFullestRank) {
  std::vector<std::vector<at::Tensor>> weights(kJoinRanks);
  run_ranks_as_threads(
      kJoinRanks,
      [&](Context& context) {
        JoinLearner one(1), two(-0.5);
        DistributedDataParallel of_one(context, one.model), of_two(context, two.model);
        int step = 0;
        for (Join join({{of_one}, {of_two}}); join.next(step < join_batches_of(context.rank())); ++step) {
          for (JoinLearner* each : {&one, &two}) {
            loss_with_scale(*each->model, context.rank(), step, each->scale).backward();
            each->update();
          }
        }
        for (const JoinLearner* each : {&one, &two}) {
          for (const at::Tensor& parameter : each->model->parameters())
            weights[static_cast<std::size_t>(context.rank())].push_back(parameter.detach().clone());
        }
      },
      kDeadline);
  for (const auto& of_rank : weights) {
    for (std::size_t i = 0; i < of_rank.size(); ++i) EXPECT_TRUE(at::equal(of_rank[i], weights[0][i])) << i;
  }
}

/// Two wrapped models of the same sizes.
struct TwoWrappers {
  explicit TwoWrappers(Context& context) : of_one(context, one), of_two(context, two), rank(context.rank()) {}
  std::shared_ptr<TwoLayers> one = model_without_norm(), two = model_without_norm();
  DistributedDataParallel of_one, of_two;
  int rank;
};

void with_pair(const std::function<void(TwoWrappers&)>& body) {
  run_ranks_as_threads(
      2,
      [&](Context& context) {
        TwoWrappers pair(context);
        body(pair);
      },
      kDeadline);
}

TEST(Join, ASecondOneBesideItIsRejected) {
  with_pair([](TwoWrappers& pair) {
    {
      const Join join(pair.of_one);
      EXPECT_THAT([&] { Join(pair.of_two); },
                  testing::ThrowsMessage<InvalidArgument>(HasSubstr("one Join over all wrappers")));
      EXPECT_THAT([&] { Join(pair.of_one); },
                  testing::ThrowsMessage<InvalidArgument>(HasSubstr("one Join over all wrappers")));
    }
    const Join after(pair.of_two);
  });
}

TEST(Join, RejectsPassOfAnotherWrapper) {
  with_pair([](TwoWrappers& pair) {
    {
      Join join(pair.of_one);
      ASSERT_TRUE(join.next(true));
      EXPECT_THAT([&] { loss_with_scale(*pair.two, pair.rank, 0, 1).backward(); },
                  testing::ThrowsMessage<InvalidArgument>(HasSubstr("one Join over all wrappers")));
      EXPECT_THAT([&] { pair.of_two.reduce_without_backward(); },
                  testing::ThrowsMessage<InvalidArgument>(HasSubstr("one Join over all wrappers")));
      const auto quiet = pair.of_two.no_sync();
      loss_with_scale(*pair.two, pair.rank, 0, 1).backward();
      loss_with_scale(*pair.one, pair.rank, 0, 1).backward();
      EXPECT_FALSE(join.next(false));
    }
    loss_with_scale(*pair.two, pair.rank, 0, 1).backward();
    EXPECT_EQ(pair.of_two.statistics().reductions, 1u);
  });
}

TEST(Join, RejectsPassThatReachesTwoModels) {
  with_pair([](TwoWrappers& pair) {
    Join join({{pair.of_one}, {pair.of_two}});
    ASSERT_TRUE(join.next(true));
    const at::Tensor loss =
        loss_with_scale(*pair.one, pair.rank, 0, 1) + loss_with_scale(*pair.two, pair.rank, 0, 1);
    EXPECT_THROW(loss.backward(), Error);
  });
}

TEST(Join, ConcurrentReductionOfDifferentModelsFails) {
  with_pair([](TwoWrappers& pair) {
    Join join({{pair.of_one}, {pair.of_two}});
    ASSERT_TRUE(join.next(true));
    EXPECT_THAT([&] { loss_with_scale(pair.rank == 0 ? *pair.one : *pair.two, pair.rank, 0, 1).backward(); },
                testing::ThrowsMessage<CommError>(HasSubstr("passes of wrapper 0 and of wrapper 1")));
  });
}

TEST(Join, RequiresAllFollowFunctionsOrNone) {
  with_pair([](TwoWrappers& pair) {
    EXPECT_THAT(
        [&] {
          Join({{pair.of_one, [] {}}, {pair.of_two}});
        },
        testing::ThrowsMessage<InvalidArgument>(HasSubstr("function that follows")));
    EXPECT_THAT(
        [&] {
          Join({{pair.of_one}, {pair.of_one}});
        },
        testing::ThrowsMessage<InvalidArgument>(HasSubstr("twice")));
  });
}

}  // namespace
}  // namespace trireme::parallel
