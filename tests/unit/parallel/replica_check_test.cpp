// Replicas that diverge during training are detected, and named on all ranks.
#include "trireme/parallel/data/replica_check.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tests/unit/parallel/small_models.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/parallel/data/distributed_data_parallel.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using test::numbers;
using testing::AllOf;
using testing::HasSubstr;

const comm::ContextOptions kSoon{.timeout_s = 20};  // no test runs into this timeout

/// An embedding. With a bound on the norms of its rows, forward writes the rows that it reads.
struct Words : torch::nn::Module {
  explicit Words(bool has_bound)
      : table(register_module("table", torch::nn::Embedding(options(has_bound)))),
        head(register_module("head", torch::nn::Linear(4, 1))) {
    test::fill_parameters(*this);
  }
  static torch::nn::EmbeddingOptions options(bool has_bound) {
    torch::nn::EmbeddingOptions made(6, 4);
    return has_bound ? made.max_norm(0.1) : made;
  }
  at::Tensor loss(std::int64_t word) { return head(table(at::full({2}, word, at::kLong))).square().mean(); }
  torch::nn::Embedding table;
  torch::nn::Linear head;
};

void train(Context& context, Words& model, DistributedDataParallel& ddp, int steps) {
  torch::optim::SGD sgd(model.parameters(), 0.1);
  for (int step = 0; step < steps; ++step) {
    ddp.zero_grad();
    model.loss((context.rank() + step) % 6).backward();
    sgd.step();
  }
}

/// The smallest change of one value.
void change(at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  tensor.view({-1})[0].mul_(1 + 2e-7);
}

TEST(ReplicaCheck, NamesTheParameterThatForwardHasWritten) {
  run_ranks_as_threads(
      3,
      [](Context& context) {
        const auto model = std::make_shared<Words>(/*has_bound=*/true);
        DistributedDataParallel ddp(context, model, {.check_replicas_every = 4});
        EXPECT_THAT([&] { train(context, *model, ddp, 8); },
                    testing::ThrowsMessage<CommError>(
                        AllOf(HasSubstr("reduction 4"), HasSubstr("'table.weight' has 3 different values"),
                              HasSubstr("one on rank 0; one on rank 1; one on rank 2"),
                              HasSubstr("of 3 tensors that ranks hold alike 1 differs"),
                              HasSubstr("check_replicas_every = 0"))));
        EXPECT_EQ(ddp.statistics().reductions, 4u);
        context.world().barrier();
      },
      kSoon);
}

TEST(ReplicaCheck, IsOnByDefault) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        const auto model = std::make_shared<Words>(/*has_bound=*/true);
        DistributedDataParallel ddp(context, model);
        EXPECT_THAT([&] { train(context, *model, ddp, 1000); },
                    testing::ThrowsMessage<CommError>(HasSubstr("'table.weight'")));
      },
      kSoon);
}

TEST(ReplicaCheck, SaysWhichRanksHoldTheSame) {
  run_ranks_as_threads(
      3,
      [](Context& context) {
        const auto model = std::make_shared<Words>(/*has_bound=*/false);
        DistributedDataParallel ddp(context, model, {.check_replicas_every = 1});
        train(context, *model, ddp, 2);
        if (context.rank() == 1) change(model->head->bias);
        EXPECT_THAT([&] { train(context, *model, ddp, 1); },
                    testing::ThrowsMessage<CommError>(AllOf(HasSubstr("'head.bias' has 2 different values"),
                                                            HasSubstr("one on ranks 0, 2; one on rank 1"))));
      },
      kSoon);
}

TEST(ReplicaCheck, AcceptsEqualReplicasAfterAnyReduction) {
  for (const ReductionEnd end : {ReductionEnd::kWithBackward, ReductionEnd::kOnRequest}) {
    run_ranks_as_threads(
        2,
        [&](Context& context) {
          const auto model = std::make_shared<test::TwoLayers>();
          model->use_norm = true;  // its buffers differ until they are broadcast
          DistributedDataParallel ddp(context, model, {.end = end, .check_replicas_every = 1});
          torch::optim::SGD sgd(model->parameters(), 0.1);
          for (int step = 0; step < 6; ++step) {
            ddp.zero_grad();
            model->forward(numbers({3, 4}, context.rank() + step)).square().mean().backward();
            ddp.finish_reduction();
            sgd.step();
          }
          EXPECT_EQ(ddp.statistics().reductions, 6u);
        },
        kSoon);
  }
}

TEST(ReplicaCheck, NamesOptionThatDiffersBetweenRanks) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        const auto model = std::make_shared<Words>(/*has_bound=*/false);
        EXPECT_THAT(
            [&] {
              const DistributedDataParallel ddp(context, model, {.check_replicas_every = context.rank() + 1});
            },
            testing::ThrowsMessage<CommError>(HasSubstr("option check_replicas_every is 1 on rank 0 and 2")));
      },
      kSoon);
}

TEST(ReplicaCheck, ANegativeNumberIsRejected) {
  run_ranks_as_threads(1, [](Context& context) {
    const auto model = std::make_shared<Words>(/*has_bound=*/false);
    EXPECT_THAT([&] { const DistributedDataParallel ddp(context, model, {.check_replicas_every = -1}); },
                testing::ThrowsMessage<InvalidArgument>(HasSubstr("at least 0; found -1")));
  });
}

/// Ranks with 1, 4, ... batches train joined. `in_body` runs after each update of a rank with a batch.
/// Returns the steps of all ranks.
std::int64_t train_joined(Context& context, const std::function<void(torch::optim::SGD&)>& in_body) {
  const auto model = std::make_shared<Words>(/*has_bound=*/false);
  DistributedDataParallel ddp(context, model, {.check_replicas_every = 1});
  torch::optim::SGD sgd(model->parameters(), 0.1);
  const auto update = [&] {
    sgd.step();
    sgd.zero_grad();
  };
  DistributedDataParallel::Join join(ddp, update);
  for (int left = 1 + 3 * context.rank(); join.next(left > 0); --left) {
    model->loss(left).backward();
    update();
    in_body(sgd);
  }
  return join.steps();
}

TEST(ReplicaCheck, FindsScheduleMissingOnIdleRank) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        const auto halve_rate = [](torch::optim::SGD& sgd) {
          auto& options = static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options());
          options.lr(options.lr() / 2);  // belongs into after_step()
        };
        EXPECT_THAT([&] { train_joined(context, halve_rate); },
                    testing::ThrowsMessage<CommError>(HasSubstr("drifted apart")));
      },
      kSoon);
}

TEST(ReplicaCheck, FollowsJoinWithEqualRanks) {
  run_ranks_as_threads(
      2, [](Context& context) { EXPECT_EQ(train_joined(context, [](torch::optim::SGD&) {}), 4); }, kSoon);
}

TEST(ReplicaCheck, FindsDriftAfterResynchronization) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        const auto model = std::make_shared<Words>(/*has_bound=*/false);
        DistributedDataParallel ddp(context, model, {.check_replicas_every = 1});
        const auto is_found = [&](const char* reduction, const char* name) {
          EXPECT_THAT([&] { train(context, *model, ddp, 1); },
                      testing::ThrowsMessage<CommError>(AllOf(HasSubstr(reduction), HasSubstr(name))));
        };
        train(context, *model, ddp, 2);
        if (context.rank() == 1) change(model->head->bias);
        is_found("reduction 3", "'head.bias'");
        at::Tensor bias = model->head->bias.detach();
        context.world().broadcast(bias, 0);
        train(context, *model, ddp, 2);
        if (context.rank() == 0) change(model->table->weight);
        is_found("reduction 6", "'table.weight'");
      },
      kSoon);
}

TEST(ReplicaCheck, FailedGroupReportsNoValues) {
  for (int world = 0; world < 2; ++world) {  // consecutive worlds in this process
    run_ranks_as_threads(
        2,
        [](Context& context) {
          ReplicaCheck check(context.world(), {{"values", numbers({3}, 1)}});
          EXPECT_THROW(check.finish("step 0"), InvalidArgument);
          check.run("step 1");
          context.store().add("ranks", 1);  // the other rank may still wait for the end of an operation
          const auto deadline = Deadline::after_s(kSoon.timeout_s);
          while (context.store().add("ranks", 0) < 2 && !deadline.expired()) std::this_thread::yield();
          context.world().fail("out of luck");
          for (int again = 0; again < 2; ++again) {
            EXPECT_THAT([&] { check.run("step 2"); },
                        testing::ThrowsMessage<CommError>(HasSubstr("out of luck")));
            EXPECT_THROW(check.finish("step 2"), InvalidArgument);
          }
        },
        kSoon);
  }
}

TEST(ReplicaCheck, IgnoresRanksThatLagInJoin) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        const auto model = std::make_shared<Words>(/*has_bound=*/false);
        DistributedDataParallel ddp(context, model, {.check_replicas_every = 1});
        torch::optim::SGD sgd(model->parameters(), 0.1);
        {
          int left = 1 + 3 * context.rank();
          for (DistributedDataParallel::Join join(ddp); join.next(left > 0); --left) {
            ddp.zero_grad();
            model->loss(left).backward();
            sgd.step();
          }
        }
        train(context, *model, ddp, 2);
        EXPECT_EQ(ddp.statistics().reductions, 6u);
      },
      kSoon);
}

// Of four ranks, two pairs have parts of one name each. All ranks have another name, and one rank has a name
// of its own.
TEST(ReplicaCheck, ComparesNamesOnRanksThatListThem) {
  run_ranks_as_threads(
      4,
      [](Context& context) {
        const int rank = context.rank();
        at::Tensor part = numbers({3, 2}, rank % 2), whole = numbers({5}, 7), own = numbers({2}, rank);
        optim::NamedTensors tensors = {{text("part@", rank % 2), part}, {"whole", whole}};
        if (rank == 2) tensors.emplace_back("own", own);
        ReplicaCheck check(context.world(), tensors, "; advice");
        check.run("step 1");
        if (rank == 3) change(part);
        EXPECT_THAT([&] { check.run("step 2"); },
                    testing::ThrowsMessage<CommError>(AllOf(
                        HasSubstr("step 2: "), HasSubstr("'part@1' has 2 different values"),
                        HasSubstr("one on rank 1; one on rank 3"),
                        HasSubstr("of 3 tensors that ranks hold alike 1 differs"), HasSubstr("; advice"))));
        if (rank == 1) change(part);
        if (rank != 0) change(whole);
        EXPECT_THAT([&] { check.run("step 3"); }, testing::ThrowsMessage<CommError>(AllOf(
                                                      HasSubstr("'whole' has 2 different values"),
                                                      HasSubstr("one on rank 0; one on ranks 1, 2, 3"))));
        if (rank == 0) change(whole);
        check.run("step 4");
      },
      kSoon);
}

TEST(ReplicaCheck, ReadsNothingThatOneRankAloneHolds) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        ReplicaCheck check(context.world(), {{text("of ", context.rank()), at::Tensor()}});
        check.run("step 1");
      },
      kSoon);
}

TEST(ReplicaCheck, ComparesValuesOfAllTypesAndStrides) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        for (const at::ScalarType type :
             {at::kDouble, at::kBFloat16, at::kLong, at::kBool, at::kComplexFloat}) {
          at::Tensor values = numbers({4, 3}, 1).mul(9).to(type);
          if (context.rank() == 1) values = values.t().contiguous().t();
          ReplicaCheck check(context.world(), {{"values", values}, {"empty", at::full({0}, 1, type)}});
          check.run("step 1");
          if (context.rank() == 1) values[2][1] = 0;
          EXPECT_THAT([&] { check.run("step 2"); }, testing::ThrowsMessage<CommError>(HasSubstr("'values'")))
              << type;
        }
      },
      kSoon);
}

TEST(ReplicaCheck, RejectsNameListedTwice) {
  run_ranks_as_threads(1, [](Context& context) {
    EXPECT_THAT(
        ([&] {
          const ReplicaCheck check(context.world(), {{"one", numbers({1}, 1)}, {"one", numbers({1}, 2)}});
        }),
        testing::ThrowsMessage<InvalidArgument>(HasSubstr("'one' is listed twice")));
  });
}

}  // namespace
}  // namespace trireme::parallel
