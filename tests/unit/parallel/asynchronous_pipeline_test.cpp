// Asynchronous pipelines equal, bit by bit, a serial program that applies the published update rules with
// their delays. The serial program is independent of the pipeline. It keeps every version of every stage's
// weights and selects versions by the rule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "tests/unit/parallel/small_models.h"
#include "trireme/base/error.h"
#include "trireme/parallel/pipeline/pipeline.h"

namespace trireme::parallel {
namespace {

using test::mean_square;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int kWidth = 6;
constexpr std::int64_t kBatch = 5;
constexpr double kLr = 0.1;

/// 6 Linear layers with a Tanh after each: 12 layers.
torch::nn::Sequential chain() {
  torch::nn::Sequential layers;
  for (int i = 0; i < 6; ++i) {
    torch::nn::Linear linear(kWidth, kWidth);
    const torch::NoGradGuard no_grad;
    linear->weight.copy_(torch::sin(torch::arange(kWidth * kWidth) * (i + 1)).reshape({kWidth, kWidth}));
    linear->bias.copy_(torch::cos(torch::arange(kWidth) + i));
    layers->push_back(linear);
    layers->push_back(torch::nn::Tanh());
  }
  return layers;
}

MicroBatch microbatch(int m) {
  const at::Tensor numbers = torch::arange(kBatch * kWidth, at::kFloat).reshape({kBatch, kWidth});
  return {.input = torch::sin(numbers * 0.7 + m), .target = torch::cos(numbers * 0.3 - m)};
}

using Weights = std::map<std::string, at::Tensor>;

/// The delays of a published rule. Stage s of n runs micro-batch m with the weights after version(s, m) of
/// its updates. Update u of stage s is the mean of the micro-batches in its group.
struct Rule {
  int stages;
  std::function<int(int stage, int m)> version;
  std::function<std::vector<int>(int stage, int update)> group;
  /// Gradients of a group are added in rank order and divided (replicas), or weighted before they are added.
  bool divides = false;
};

/// Applies the rule to the layers of every stage, for `num_microbatches`.
class SerialProgram {
 public:
  SerialProgram(const Rule& rule, int num_microbatches, const std::vector<int>& cuts, double weight)
      : rule_(rule),
        cuts_(cuts),
        weight_(weight),
        history_(static_cast<std::size_t>(rule.stages)),
        gradients_(static_cast<std::size_t>(rule.stages)) {
    for (int stage = 0; stage < rule.stages; ++stage) {
      optim::NamedTensors& mine = newest_.emplace_back();
      for (const auto& item : layers_->named_parameters()) {
        if (stage_of(item.key()) != stage) continue;
        now(stage)[item.key()] = item.value().detach().clone();
        mine.emplace_back(item.key(), item.value().detach().clone());
      }
      optimizers_.push_back(optim::make_optimizer({.name = "sgd", .lr = kLr, .momentum = 0.9}, mine));
    }
    for (int m = 0; m < num_microbatches; ++m) run(m);
  }
  Weights weights() const {
    Weights all;
    for (const auto& versions : history_) all.insert(versions.back().begin(), versions.back().end());
    return all;
  }
  const std::vector<double>& losses() const { return losses_; }

 private:
  Weights& now(int stage) {
    auto& versions = history_[static_cast<std::size_t>(stage)];
    if (versions.empty()) versions.emplace_back();
    return versions.back();
  }
  int stage_of(const std::string& name) const {
    const int layer = std::stoi(name);
    int stage = 0;
    while (stage < static_cast<int>(cuts_.size()) && layer >= cuts_[static_cast<std::size_t>(stage)]) ++stage;
    return stage;
  }

  void run(int m) {
    // The versions must exist, because an update is applied as soon as its group is complete.
    for (auto& item : layers_->named_parameters()) {
      const int stage = stage_of(item.key());
      const auto& versions = history_[static_cast<std::size_t>(stage)];
      const int version = rule_.version(stage, m);
      ASSERT_LT(version, static_cast<int>(versions.size())) << "stage " << stage << ", micro-batch " << m;
      const torch::NoGradGuard no_grad;
      item.value().copy_(versions[static_cast<std::size_t>(version)].at(item.key()));
      item.value().mutable_grad().reset();
    }
    const MicroBatch batch = microbatch(m);
    const at::Tensor loss = mean_square(layers_->forward(*batch.input), batch.target);
    loss.backward(torch::full({}, weight_));
    losses_.push_back(loss.item<double>());
    for (auto& item : layers_->named_parameters())
      gradients_[static_cast<std::size_t>(stage_of(item.key()))][m][item.key()] = item.value().grad().clone();
    for (int stage = 0; stage < rule_.stages; ++stage) update(stage, m);
  }

  void update(int stage, int m) {
    auto& versions = history_[static_cast<std::size_t>(stage)];
    const std::vector<int> group = rule_.group(stage, static_cast<int>(versions.size()) - 1);
    if (group.back() != m) return;
    for (auto& [name, weight] : newest_[static_cast<std::size_t>(stage)]) {
      at::Tensor gradient;
      for (const int member : group) {
        const at::Tensor& part = gradients_[static_cast<std::size_t>(stage)][member][name];
        gradient = gradient.defined() ? gradient + part : part.clone();
      }
      if (rule_.divides) gradient *= 1 / static_cast<double>(group.size());
      weight.mutable_grad() = gradient;
    }
    optimizers_[static_cast<std::size_t>(stage)]->step();
    Weights next;
    for (const auto& [name, weight] : newest_[static_cast<std::size_t>(stage)]) next[name] = weight.clone();
    versions.push_back(next);
  }

  const Rule rule_;
  const std::vector<int> cuts_;
  const double weight_;
  torch::nn::Sequential layers_ = chain();
  std::vector<std::vector<Weights>> history_;      ///< by stage, then version
  std::vector<std::map<int, Weights>> gradients_;  ///< by stage, then micro-batch
  std::vector<optim::NamedTensors> newest_;        ///< by stage
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers_;
  std::vector<double> losses_;
};

/// A rank's stage of the chain, with an optimizer for its updates.
struct Learner {
  Learner(comm::Context& context, PipelineOptions options)
      : pipe(context, model::layers_of(layers), updating(std::move(options))),
        optimizer(optim::make_optimizer({.name = "sgd", .lr = kLr, .momentum = 0.9}, pipe.parameters())) {}
  PipelineOptions updating(PipelineOptions options) {
    options.update = [this] { optimizer->step(); };
    return options;
  }
  const torch::nn::Sequential layers = chain();
  Pipeline pipe;
  std::unique_ptr<optim::Optimizer> optimizer;
};

struct Outcome {
  Weights weights;
  std::vector<double> losses;
  std::map<int, Pipeline::Staleness> staleness;  ///< by rank
};

/// Runs consecutive streams with these numbers of updates. Returns the weights of all ranks.
Outcome in_pipeline(int ranks, PipelineOptions options, const std::vector<int>& streams, double weight = 1) {
  Outcome outcome;
  std::mutex mutex;
  comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
    Learner learner(context, options);
    Pipeline& pipe = learner.pipe;
    std::vector<double> losses;
    int before = 0;
    for (const int num_updates : streams) {
      pipe.start({.num_updates = num_updates,
                  .next =
                      [&, before](int m) {
                        MicroBatch batch = microbatch(before + m);
                        batch.weight = weight;
                        return batch;
                      },
                  .shapes = {microbatch(0).input},
                  .loss = mean_square});
      while (!pipe.drained()) losses.push_back(pipe.advance(1));
      before += num_updates * options.num_microbatches;
    }
    const std::lock_guard lock(mutex);
    outcome.staleness[context.rank()] = pipe.staleness();
    if (pipe.has_last_stage()) outcome.losses = losses;
    for (const auto& [name, parameter] : pipe.parameters()) {
      const auto [at, fresh] = outcome.weights.emplace(name, parameter.clone());
      EXPECT_TRUE(at->second.equal(parameter)) << name << " differs between its holders";
    }
  });
  return outcome;
}

void expect_same(const Weights& found, const Weights& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, weight] : expected)
    EXPECT_TRUE(found.at(name).equal(weight))
        << name << " differs by " << (found.at(name) - weight).abs().max().item<double>();
}

std::vector<int> alone(int, int update) { return {update}; }

// SOSP 2019, section 3.3: w(t + 1) = w(t) - lr * grad f(w1(t - n + 1), ..., wn(t)).
TEST(AsynchronousPipeline, WeightStashingIsThePublishedUpdateRule) {
  const std::vector<int> cuts = {4, 8};
  const Rule rule{
      .stages = 3, .version = [](int stage, int m) { return std::max(0, m - (2 - stage)); }, .group = alone};
  const SerialProgram serial(rule, 12, cuts, 1);
  const Outcome found = in_pipeline(3, {.schedule = "pipedream", .num_microbatches = 1, .cuts = cuts}, {12});
  expect_same(found.weights, serial.weights());
  EXPECT_EQ(found.losses, serial.losses());
  // NOAM versions on the first stage, one on the last.
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(found.staleness.at(rank).updates, 2 - rank) << "rank " << rank;
    EXPECT_EQ(found.staleness.at(rank).versions, 3 - rank) << "rank " << rank;
  }
}

// The same section: every stage uses the version that the input stage used.
TEST(AsynchronousPipeline, VerticalSyncUsesOneVersionEverywhere) {
  const std::vector<int> cuts = {4, 8};
  const Rule rule{.stages = 3, .version = [](int, int m) { return std::max(0, m - 2); }, .group = alone};
  const SerialProgram serial(rule, 12, cuts, 1);
  const Outcome found = in_pipeline(
      3, {.schedule = "pipedream", .num_microbatches = 1, .vertical_sync = true, .cuts = cuts}, {12});
  expect_same(found.weights, serial.weights());
  EXPECT_EQ(found.losses, serial.losses());
  for (const int rank : {0, 1, 2}) EXPECT_EQ(found.staleness.at(rank).versions, 3) << "rank " << rank;
}

// arXiv 2006.09503, section 3.1: W(t + 1) = W(t) - lr * grad f(W(t - 1)), over groups of micro-batches.
TEST(AsynchronousPipeline, TwoBufferedWeightsAreOneUpdateAfter) {
  const std::vector<int> cuts = {4, 8};
  const Rule rule{.stages = 3,
                  .version = [](int, int m) { return std::max(0, m / 4 - 1); },
                  .group =
                      [](int, int update) {
                        return std::vector<int>{4 * update, 4 * update + 1, 4 * update + 2, 4 * update + 3};
                      }};
  const SerialProgram serial(rule, 20, cuts, 0.25);
  const Outcome found =
      in_pipeline(3, {.schedule = "pipedream-2bw", .num_microbatches = 4, .cuts = cuts}, {5}, 0.25);
  expect_same(found.weights, serial.weights());
  for (const int rank : {0, 1, 2}) EXPECT_EQ(found.staleness.at(rank).versions, 2) << "rank " << rank;
}

// Two replicas of the first stage process micro-batches in turn. They update together after every two
// micro-batches.
TEST(AsynchronousPipeline, ReplicasInTurnCombineTheirGradients) {
  const std::vector<int> cuts = {6};
  const Rule rule{
      .stages = 2,
      .version = [](int stage, int m) { return stage == 0 ? std::max(0, m / 2 - 1) : m; },
      .group =
          [](int stage, int update) {
            return stage == 0 ? std::vector<int>{2 * update, 2 * update + 1} : std::vector<int>{update};
          },
      .divides = true};
  const SerialProgram serial(rule, 12, cuts, 1);
  const Outcome found =
      in_pipeline(3, {.schedule = "1f1b-rr", .num_microbatches = 12, .replicas = {2, 1}, .cuts = cuts}, {1});
  expect_same(found.weights, serial.weights());
  EXPECT_EQ(found.losses, serial.losses());
}

TEST(AsynchronousPipeline, BeginsStreamWithNewestWeightsEverywhere) {
  const std::vector<int> cuts = {6};
  // After 7 updates the pipeline is drained. The next micro-batch uses all of them.
  const Rule rule{.stages = 2,
                  .version =
                      [](int stage, int m) {
                        const int begin = m < 7 ? 0 : 7;
                        return std::max(begin, m - (1 - stage));
                      },
                  .group = alone};
  const SerialProgram serial(rule, 11, cuts, 1);
  const Outcome found =
      in_pipeline(2, {.schedule = "pipedream", .num_microbatches = 1, .cuts = cuts}, {7, 4});
  expect_same(found.weights, serial.weights());
}

TEST(AsynchronousPipeline, RecomputationUsesTheVersionOfTheForward) {
  const PipelineOptions options{.schedule = "pipedream", .num_microbatches = 1, .cuts = {4, 8}};
  PipelineOptions again = options;
  again.recompute = true;
  expect_same(in_pipeline(3, again, {9}).weights, in_pipeline(3, options, {9}).weights);
}

/// Two streams of pipedream-2bw. `odd` changes every third micro-batch so that it has no effect on the
/// weights.
Weights with_every_third(const std::function<MicroBatch(MicroBatch)>& odd) {
  const PipelineOptions options{.schedule = "pipedream-2bw", .num_microbatches = 2, .cuts = {6}};
  Weights weights;
  std::mutex mutex;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    Learner learner(context, options);
    Pipeline& pipe = learner.pipe;
    for (int stream = 0; stream < 2; ++stream) {
      pipe.start({.num_updates = 4,
                  .next = [&](int m) { return m % 3 == 1 ? odd(microbatch(m)) : microbatch(m); },
                  .shapes = {microbatch(0).input},
                  .loss = mean_square});
      while (!pipe.drained()) pipe.advance(1);
    }
    const std::lock_guard lock(mutex);
    for (const auto& [name, parameter] : pipe.parameters()) weights[name] = parameter.clone();
  });
  return weights;
}

TEST(AsynchronousPipeline, EmptyMicroBatchesLeaveNoVersion) {
  const Weights without_weight = with_every_third([](MicroBatch batch) {
    batch.weight = 0;
    return batch;
  });
  const Weights empty = with_every_third([](const MicroBatch& batch) {
    return MicroBatch{.input = batch.input->slice(0, 0, 0), .target = batch.target->slice(0, 0, 0)};
  });
  expect_same(empty, without_weight);
}

// The first stage has two ranks, and the second update of a round has no samples on either.
TEST(AsynchronousPipeline, UpdateWithoutSamplesKeepsReplicas) {
  const auto weights = [](int num_microbatches) {
    Weights all;
    std::mutex mutex;
    comm::run_ranks_as_threads(3, [&](comm::Context& context) {
      Learner learner(
          context,
          {.schedule = "1f1b-rr", .num_microbatches = num_microbatches, .replicas = {2, 1}, .cuts = {6}});
      for (int stream = 0; stream < 2; ++stream) {
        learner.pipe.start({.num_updates = 1,
                            .next =
                                [&](int m) {
                                  const MicroBatch whole = microbatch(m);
                                  return m < 2 ? whole
                                               : MicroBatch{.input = whole.input->slice(0, 0, 0),
                                                            .target = whole.target->slice(0, 0, 0)};
                                },
                            .shapes = {microbatch(0).input},
                            .loss = mean_square});
        while (!learner.pipe.drained()) learner.pipe.advance(1);
      }
      const std::lock_guard lock(mutex);
      for (const auto& [name, parameter] : learner.pipe.parameters()) all[name] = parameter.clone();
    });
    return all;
  };
  expect_same(weights(4), weights(2));
}

TEST(AsynchronousPipeline, RankKeepsNoMicroBatchesOfOthers) {
  comm::run_ranks_as_threads(3, [](comm::Context& context) {
    Learner learner(context, {.schedule = "1f1b-rr", .num_microbatches = 2, .replicas = {2, 1}, .cuts = {6}});
    std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> given;
    const auto next = [&](int m) {
      MicroBatch batch = microbatch(m);
      given.emplace_back(batch.target->getIntrusivePtr());
      return batch;
    };
    learner.pipe.start(
        {.num_updates = 20, .next = next, .shapes = {microbatch(0).input}, .loss = mean_square});
    while (!learner.pipe.drained()) {
      learner.pipe.advance(1);
      EXPECT_LE(std::ranges::count_if(given, [](const auto& each) { return !each.expired(); }), 8);
    }
    EXPECT_GE(given.size(), 39u);  // the last one of another rank is not requested
  });
}

TEST(AsynchronousPipeline, CanBeDrainedAheadOfPlan) {
  const PipelineOptions options{.schedule = "pipedream", .num_microbatches = 1, .cuts = {4, 8}};
  for (const int known_at : {1, 4, 9}) {
    SCOPED_TRACE(known_at);
    Weights weights;
    int num_updates = 0;
    std::mutex mutex;
    comm::run_ranks_as_threads(3, [&](comm::Context& context) {
      Learner learner(context, options);
      Pipeline& pipe = learner.pipe;
      pipe.start(
          {.num_updates = 1000, .next = microbatch, .shapes = {microbatch(0).input}, .loss = mean_square});
      int updates = 0;
      while (!pipe.drained()) {
        pipe.advance(1);
        if (++updates == known_at) pipe.finish_after(known_at + pipe.asynchronous_margin());
      }
      const std::lock_guard lock(mutex);
      num_updates = updates;
      for (const auto& [name, parameter] : pipe.parameters()) weights[name] = parameter.clone();
    });
    EXPECT_LT(num_updates, 30);
    expect_same(weights, in_pipeline(3, options, {num_updates}).weights);
  }
}

TEST(AsynchronousPipeline, RejectsInvalidOptions) {
  const auto error_of = [](const PipelineOptions& options) -> std::string {
    try {
      pipeline_program(options, 2, schedule::Transport::kBuffered);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing";
  };
  EXPECT_EQ(error_of({.schedule = "pipedream", .num_microbatches = 1}), "nothing");
  EXPECT_THAT(error_of({.schedule = "pipedream", .num_microbatches = 4}),
              HasSubstr("1 micro-batch per update"));
  EXPECT_THAT(error_of({.schedule = "pipedream", .num_microbatches = 1, .num_rounds = 2}),
              HasSubstr("flush"));
  EXPECT_THAT(error_of({.schedule = "1f1b", .vertical_sync = true}), HasSubstr("pipedream"));
  EXPECT_THAT(error_of({.schedule = "pipedream-2bw", .num_microbatches = 1}), HasSubstr("at least as many"));
}

TEST(AsynchronousPipeline, RejectsContinuationAfterError) {
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    const torch::nn::Sequential layers = chain();
    Pipeline pipe(context, model::layers_of(layers), {.schedule = "pipedream", .num_microbatches = 1});
    const auto start = [&] {
      pipe.start({.num_updates = 3,
                  .next = [](int m) { return m == 1 ? throw DataError("unreadable") : microbatch(m); },
                  .shapes = {microbatch(0).input},
                  .loss = mean_square});
    };
    start();
    pipe.advance(1);
    EXPECT_THROW(pipe.advance(2), DataError);
    EXPECT_THAT([&] { pipe.advance(2); }, ThrowsMessage<InvalidArgument>(HasSubstr("nothing is under way")));
    EXPECT_THAT(start, ThrowsMessage<InvalidArgument>(HasSubstr("resume from a checkpoint")));
    EXPECT_THAT([&] { pipe.evaluate(microbatch(0).input); },
                ThrowsMessage<InvalidArgument>(HasSubstr("different versions")));
  });
}

TEST(AsynchronousPipeline, RejectsStepAndEvaluationWhileRunning) {
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    const torch::nn::Sequential layers = chain();
    Pipeline pipe(context, model::layers_of(layers), {.schedule = "pipedream", .num_microbatches = 1});
    const MicroBatch batch = microbatch(0);
    EXPECT_THAT([&] { pipe.step(batch.input, batch.target, mean_square); },
                ThrowsMessage<InvalidArgument>(HasSubstr("never flushes")));
    pipe.start({.num_updates = 2, .next = microbatch, .shapes = {batch.input}, .loss = mean_square});
    pipe.advance(1);
    EXPECT_THAT([&] { pipe.evaluate(batch.input); }, ThrowsMessage<InvalidArgument>(HasSubstr("drain")));
    pipe.advance(2);
    EXPECT_TRUE(pipe.evaluate(batch.input)->defined());
  });
}

}  // namespace
}  // namespace trireme::parallel
