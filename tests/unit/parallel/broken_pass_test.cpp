// Backward passes that end early: by an exception anywhere, by a second pass in between, or by the end of the
// wrapper. A loop that continues gets the right numbers, or an error on all ranks, but never wrong numbers.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/nn/modules/linear.h>

#include <optional>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tests/unit/parallel/data_parallel_case.h"
#include "trireme/base/clock.h"

namespace trireme::parallel {
namespace {

using Action = std::function<void()>;

constexpr double kOneLayer_mib = 1e-5;

/// Three layers of equal size, so that the reduction of one could be mistaken for that of another.
struct Chain : torch::nn::Module {
  Chain() {
    for (const char* name : {"first", "second", "third"}) {
      layers.push_back(register_module(name, torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false))));
    }
    test::fill_parameters(*this);
  }
  /// `at_begin` runs in backward before the first gradient, and `inside` after the gradients of all layers
  /// but the first.
  at::Tensor loss(double seed, const Action& inside = nullptr, const Action& at_begin = nullptr) {
    at::Tensor x = layers[0]->forward(numbers({6, 4}, seed)).tanh();
    call_with_gradient_of(x, inside);
    x = layers[2]->forward(layers[1]->forward(x).tanh());
    call_with_gradient_of(x, at_begin);
    return x.square().mean();
  }
  static void call_with_gradient_of(const at::Tensor& x, const Action& action) {
    if (action) x.register_hook([action](const at::Tensor&) { action(); });
  }
  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (const auto& parameter : parameters()) all.push_back(parameter.grad().clone());
    return all;
  }
  std::vector<torch::nn::Linear> layers;
};

/// The sum of the gradients of plain passes, one for each seed.
std::vector<at::Tensor> plain_gradients(const std::vector<double>& seeds) {
  Chain alone;
  for (const double seed : seeds) alone.loss(seed).backward();
  return alone.gradients();
}

void expect_mean_of(const Chain& model, double seed, double other_seed) {
  const auto expected = plain_gradients({seed, other_seed}), got = model.gradients();
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_LE((got[i] - expected[i] / 2).abs().max().item<double>(), 1e-6) << "layer " << i;
}

[[noreturn]] void fail() { throw std::runtime_error("out of luck"); }

auto names_rank_zero() {
  return testing::ThrowsMessage<CommError>(
      AllOf(HasSubstr("rank 0, group 'world': a backward pass ended before all gradients were reduced")));
}

/// Waits until all ranks have arrived. It uses no operation of the group, which a rank is about to fail:
/// another rank may still run an operation that this rank has finished.
void meet(Context& context, const std::string& where) {
  const auto deadline = Deadline::after_s(kDeadline.timeout_s);
  context.store().add(where, 1);
  while (context.store().add(where, 0) < context.world_size() && !deadline.expired())
    std::this_thread::yield();
}

struct Wrapped {
  explicit Wrapped(Context& context, DataParallelOptions options = {}) {
    options.bucket_mib = options.first_bucket_mib = kOneLayer_mib;
    ddp.emplace(context, model, options);
    meet(context, "wrapped");
  }
  std::shared_ptr<Chain> model = std::make_shared<Chain>();
  std::optional<DistributedDataParallel> ddp;
};

// Before and after the buckets have been reordered.
TEST(BrokenPass, ExceptionOnRankFailsGroupByName) {
  for (const int steps_before : {0, 1, 3}) {
    run_ranks_as_threads(
        2,
        [&](Context& context) {
          Wrapped wrapped(context);
          for (int step = 0; step < steps_before; ++step) {
            wrapped.ddp->zero_grad();
            wrapped.model->loss(step + context.rank()).backward();
          }
          wrapped.ddp->zero_grad();
          meet(context, "in step");
          if (context.is_main()) {
            EXPECT_THROW(wrapped.model->loss(7, fail).backward(), std::runtime_error);
          }
          for (int again = 0; again < 2; ++again) {
            wrapped.ddp->zero_grad();
            EXPECT_THAT([&] { wrapped.model->loss(8).backward(); }, names_rank_zero())
                << "rank " << context.rank();
          }
        },
        kDeadline);
  }
}

TEST(BrokenPass, MayBeRepeatedBeforeAnyReduction) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        Wrapped wrapped(context);
        for (int step = 0; step < 3; ++step) {
          wrapped.ddp->zero_grad();
          if (context.is_main()) {
            EXPECT_THROW(wrapped.model->loss(step, nullptr, fail).backward(), std::runtime_error);
          }
          wrapped.model->loss(step + context.rank()).backward();
          expect_mean_of(*wrapped.model, step, step + 1);
        }
      },
      kDeadline);
}

TEST(BrokenPass, GradientsWithoutSyncAwaitReduction) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        Wrapped wrapped(context, {.unused_parameters = UnusedParameters::kFind});
        {
          const auto quiet = wrapped.ddp->no_sync();
          wrapped.model->loss(3 + context.rank()).backward();
        }
        if (context.is_main()) {
          EXPECT_THROW(wrapped.model->loss(5, nullptr, fail).backward(), std::runtime_error);
        }
        // Reaches the last layer only.
        const at::Tensor x = wrapped.model->layers[2]->forward(numbers({6, 4}, 1));
        (x * 0).sum().backward();
        expect_mean_of(*wrapped.model, 3, 4);
      },
      kDeadline);
}

TEST(BrokenPass, ModuleKeepsItsGradientsAfterwards) {
  const auto expected = plain_gradients({9});
  run_ranks_as_threads(
      2,
      [&](Context& context) {
        Wrapped wrapped(context);
        if (context.is_main()) {
          EXPECT_THROW(wrapped.model->loss(7, fail).backward(), std::runtime_error);
        }
        for (const bool keeps_wrapper : {true, false}) {
          wrapped.model->zero_grad();
          std::optional<DistributedDataParallel::NoSync> quiet;
          if (keeps_wrapper) quiet.emplace(*wrapped.ddp);
          if (!keeps_wrapper) wrapped.ddp.reset();
          wrapped.model->loss(9).backward();
          const auto got = wrapped.model->gradients();
          for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
        }
      },
      kDeadline);
}

/// Counts the reductions in flight, and fails to start the reduction number `fails_at`.
class CountingHook : public CommHook {
 public:
  std::function<void()> start(comm::Group& group, GradientBucket& bucket, ReduceScale) override {
    if (++started == fails_at) throw std::runtime_error("no memory for this bucket");
    ++under_way;
    return [this, pending = group.all_reduce_async(bucket.flat)]() mutable {
      --under_way;
      pending.wait();
    };
  }
  int started = 0, under_way = 0, fails_at = 0;
};

TEST(BrokenPass, AwaitsStartedReductionsBeforeNewWrites) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        const auto hook = std::make_shared<CountingHook>();
        Wrapped wrapped(context, {.hook = hook});
        if (!context.is_main()) {
          EXPECT_THAT([&] { wrapped.model->loss(1).backward(); }, names_rank_zero());
        } else {
          EXPECT_THROW(wrapped.model->loss(7, fail).backward(), std::runtime_error);
          EXPECT_EQ(hook->started, 2);
        }
        EXPECT_EQ(hook->under_way, 0);
      },
      kDeadline);
}

TEST(BrokenPass, UnstartableReductionFailsAllRanks) {
  for (const int fails_at : {2, 3}) {
    run_ranks_as_threads(
        2,
        [&](Context& context) {
          const auto hook = std::make_shared<CountingHook>();
          Wrapped wrapped(context, {.hook = hook});
          if (context.is_main()) {
            hook->fails_at = fails_at;
            EXPECT_THROW(wrapped.model->loss(1).backward(), std::runtime_error);
          }
          EXPECT_THAT([&] { wrapped.model->loss(1).backward(); },
                      testing::ThrowsMessage<CommError>(
                          AllOf(HasSubstr("rank 0"), HasSubstr("no memory for this bucket"))));
          EXPECT_EQ(hook->under_way, 0);
        },
        kDeadline);
  }
}

/// Recomputes its part of the model in backward, like activation checkpointing.
struct Again : torch::autograd::Function<Again> {
  using Part = std::function<at::Tensor(const at::Tensor&)>;
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const Part* part) {
    context->save_for_backward({x});
    context->saved_data["part"] = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(part));
    const at::NoGradGuard no_grad;
    return (*part)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto* part = reinterpret_cast<const Part*>(context->saved_data["part"].toInt());
    const at::AutoGradMode on(true);
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    (*part)(x).backward(gradients[0]);
    return {x.grad(), {}};
  }
};

at::Tensor leaf_of(double seed) { return numbers({6, 4}, seed).requires_grad_(); }

TEST(BrokenPass, ExceptionInRecomputationFailsGroupByName) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        Wrapped wrapped(context);
        auto& layers = wrapped.model->layers;
        bool breaks = context.is_main();
        const Again::Part last = [&](const at::Tensor& x) { return layers[2]->forward(x).tanh(); };
        const Again::Part middle = [&](const at::Tensor& x) {
          if (breaks && x.requires_grad() && at::GradMode::is_enabled()) fail();
          return layers[1]->forward(x).tanh();
        };
        const auto backward = [&] {
          const at::Tensor x = Again::apply(layers[0]->forward(leaf_of(context.rank())), &middle);
          Again::apply(x, &last).sum().backward();
        };
        // The first gradients come from a nested pass that has ended long before the outer pass fails.
        if (context.is_main()) {
          EXPECT_THROW(backward(), std::runtime_error);
        }
        breaks = false;
        EXPECT_THAT(backward, names_rank_zero());
      },
      kDeadline);
}

TEST(BrokenPass, NestedPassEndsOuterPass) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        Wrapped wrapped(context, {.unused_parameters = UnusedParameters::kFind});
        const Again::Part part = [&](const at::Tensor& x) { return wrapped.model->layers[1]->forward(x); };
        for (int step = 0; step < 3; ++step) {
          wrapped.ddp->zero_grad();
          Again::apply(leaf_of(context.rank()), &part).sum().backward();
          EXPECT_EQ(wrapped.ddp->statistics().reductions, static_cast<std::uint64_t>(step + 1));
          EXPECT_FALSE(wrapped.model->layers[0]->weight.grad().defined());
        }
      },
      kDeadline);
}

TEST(BrokenPass, WrapperDestructionFailsWaitingGroup) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        Wrapped wrapped(context,
                        {.unused_parameters = UnusedParameters::kFind, .end = ReductionEnd::kOnRequest});
        wrapped.model->loss(context.rank()).backward();
        if (context.is_main()) {
          wrapped.ddp.reset();
        } else {
          EXPECT_THAT([&] { wrapped.ddp->finish_reduction(); }, names_rank_zero());
        }
      },
      kDeadline);
}

TEST(BrokenPass, SecondPassBeforeFirstEndsFailsGroup) {
  for (const bool is_quiet : {false, true}) {
    run_ranks_as_threads(
        2,
        [&](Context& context) {
          Wrapped wrapped(context,
                          {.unused_parameters = UnusedParameters::kFind, .end = ReductionEnd::kOnRequest});
          wrapped.model->loss(context.rank()).backward();
          if (!context.is_main()) {
            EXPECT_THAT([&] { wrapped.ddp->finish_reduction(); }, names_rank_zero());
            return;
          }
          std::optional<DistributedDataParallel::NoSync> quiet;
          if (is_quiet) quiet.emplace(*wrapped.ddp);
          EXPECT_THAT([&] { wrapped.model->loss(2).backward(); },
                      testing::ThrowsMessage<CommError>(HasSubstr("finish_reduction()")));
          quiet.reset();
          EXPECT_THAT([&] { wrapped.model->loss(2).backward(); }, names_rank_zero());
        },
        kDeadline);
  }
}

TEST(BrokenPass, RejectsEarlyParticipationWithoutLoss) {
  run_ranks_as_threads(
      2,
      [](Context& context) {
        Wrapped wrapped(context, {.end = ReductionEnd::kOnRequest});
        wrapped.model->loss(context.rank()).backward();
        EXPECT_THAT([&] { wrapped.ddp->reduce_without_backward(); },
                    testing::ThrowsMessage<InvalidArgument>(HasSubstr("finish_reduction()")));
        wrapped.ddp->finish_reduction();
        expect_mean_of(*wrapped.model, 0, 1);
      },
      kDeadline);
}

}  // namespace
}  // namespace trireme::parallel
