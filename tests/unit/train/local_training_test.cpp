// Local SGD. A run equals the serial program of the published rules and resumes from a checkpoint with the
// same bits. Reading its state does not change it.

#include <ATen/Parallel.h>
#include <ATen/ops/stack.h>
#include <gmock/gmock.h>
#include <torch/nn/functional/loss.h>

#include <cmath>
#include <map>
#include <mutex>

#include "tests/unit/train/frozen_model.h"
#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/run/verify.h"
#include "trireme/train/step/model_state.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

using Values = std::map<std::string, at::Tensor>;

Values copies(const optim::NamedTensors& tensors) {
  Values result;
  for (const auto& [name, tensor] : tensors) result[name] = tensor.detach().clone();
  return result;
}

struct Rule {
  const char* name;
  const char* outer = "average";
  int sites = 2, ranks = 1;  ///< `ranks`: ranks per site
  std::int64_t steps = 4, from = 0, fragments = 1, delay = 0;
  double mixing = 0.5;
};
std::ostream& operator<<(std::ostream& out, const Rule& rule) { return out << rule.name; }

const Rule kRules[] = {
    {.name = "LocalSgd"},
    {.name = "LocalSgdOfThree", .sites = 3, .steps = 3},
    {.name = "SitesOfTwo", .ranks = 2},
    {.name = "PostLocalSgd", .from = 4},
    {.name = "PostLocalSitesOfTwo", .ranks = 2, .from = 3},
    {.name = "Momentum", .outer = "momentum", .steps = 3},
    {.name = "DiLoCo", .outer = "nesterov", .sites = 3, .steps = 2},
    {.name = "DiLoCoSitesOfTwo", .outer = "nesterov", .ranks = 2, .steps = 3},
    {.name = "Fragments", .outer = "nesterov", .steps = 4, .fragments = 4},
    {.name = "Delayed", .outer = "nesterov", .steps = 4, .delay = 2},
    {.name = "Streaming",
     .outer = "nesterov",
     .sites = 3,
     .steps = 5,
     .from = 1,
     .fragments = 2,
     .delay = 3,
     .mixing = 0.25},
    {.name = "StreamingSitesOfTwo", .outer = "nesterov", .ranks = 2, .steps = 4, .fragments = 2, .delay = 3},
};

/// The model at the last synchronization of the sites.
optim::NamedTensors mean_of_sites(Trainer& trainer) {
  optim::NamedTensors mean;
  for (const auto& shard : shards_of(trainer.model_state())) mean.emplace_back(shard.name, shard.tensor);
  return mean;
}

class LocalRuns : public SmallRuns {
 protected:
  RunConfig local(const std::string& name, const Rule& rule) const {
    RunConfig result = config(name);
    result.train.global_batch = 510;
    result.train.clip_norm = 0;
    result.parallel.local_steps = rule.steps;
    result.parallel.local_ranks = rule.ranks;
    result.parallel.local_from_step = rule.from;
    result.parallel.local_fragments = rule.fragments;
    result.parallel.local_delay = rule.delay;
    result.parallel.local_mixing = rule.mixing;
    result.parallel.outer_optimizer = rule.outer;
    return result;
  }
  static int num_ranks(const Rule& rule) { return rule.sites * rule.ranks; }

  /// The models of all sites after each step, and their mean at the end.
  struct Trained {
    std::vector<std::vector<Values>> sites;  ///< [step][site]
    Values mean;
    std::vector<double> losses;
    int torch_threads = 0;  ///< of each rank; the split of an operation over threads determines its last bits
  };
  static Trained trained(const RunConfig& config, const Rule& rule) {
    const data::DataSource data = open_data(config, Log());
    Trained result;
    std::mutex mutex;
    result.sites.resize(12, std::vector<Values>(static_cast<std::size_t>(rule.sites)));
    comm::run_ranks_as_threads(num_ranks(rule), [&](comm::Context& context) {
      Trainer trainer(config, context, data);
      const auto note = [&](const std::optional<StepReport>& report) {
        if (report && context.is_main()) result.losses.push_back(report->loss);
      };
      while (!trainer.finished()) {
        note(trainer.step());
        if (context.rank() % rule.ranks != 0) continue;
        const std::lock_guard lock(mutex);
        result.sites[static_cast<std::size_t>(trainer.steps_done() - 1)]
                    [static_cast<std::size_t>(context.rank() / rule.ranks)] = copies(trainer.parameters());
      }
      while (const auto report = trainer.last_report()) note(report);
      trainer.synchronize();
      if (!context.is_main()) return;
      result.mean = copies(mean_of_sites(trainer));
      result.torch_threads = at::get_num_threads();
    });
    return result;
  }
};

/// The published rules for consecutive sites, with as many libtorch threads as a rank has.
class SerialSites {
 public:
  SerialSites(const RunConfig& config, const Rule& rule, const data::DataSource& data)
      : rule_(rule), config_(config), alone_(comm::Context::join({}, config.comm)) {
    RunConfig plain = config;
    plain.parallel = {};
    for (int site = 0; site < rule.sites; ++site) {
      trainers_.push_back(std::make_unique<Trainer>(plain, *alone_, data));  // initial values of a model
      sites_.push_back({.parameters = trainers_.back()->parameters()});
      sites_.back().optimizer = optim::make_optimizer(config.optimizer, sites_.back().parameters);
      sites_.back().stream = data.train->open({.global_batch = config.train.global_batch,
                                               .num_microbatches = rule.ranks,
                                               .rank = site,
                                               .world_size = rule.sites,
                                               .seed = static_cast<std::uint64_t>(config.run.seed)});
    }
    for (const auto& [name, value] : sites_[0].parameters) outer_.push_back(value.detach().clone());
    momentum_.resize(outer_.size());
    sent_.resize(static_cast<std::size_t>(rule.fragments), 0);
    difference_.resize(outer_.size());
  }

  void step(std::int64_t step) {
    const bool together = step <= rule_.from;
    std::int64_t global = 0;
    for (std::size_t s = 0; s < sites_.size(); ++s) global = std::max(global, backward(s, together));
    if (together) add_gradients();
    for (Site& site : sites_) site.optimizer->step();
    const at::NoGradGuard no_grad;
    for (int f = 0; f < rule_.fragments; ++f) {
      std::int64_t& sent = sent_[static_cast<std::size_t>(f)];
      if (sent > 0 && step - sent == rule_.delay) outer_step(f);
      const std::int64_t place = step - rule_.from - f * rule_.steps / rule_.fragments;
      if (step <= rule_.from || place < 0 || place % rule_.steps != 0) continue;
      for (std::size_t p = 0; p < outer_.size(); ++p) {
        if (fragment_of(p) != f) continue;
        difference_[p] = outer_[p] - sites_[0].parameters[p].second;
        for (std::size_t s = 1; s < sites_.size(); ++s)
          difference_[p] += outer_[p] - sites_[s].parameters[p].second;
        difference_[p] /= static_cast<double>(sites_.size());
      }
      sent = step;
      if (rule_.delay == 0) outer_step(f);
    }
  }
  Values model(int site) const { return copies(sites_[static_cast<std::size_t>(site)].parameters); }

 private:
  struct Site {
    optim::NamedTensors parameters;
    std::unique_ptr<optim::Optimizer> optimizer = {};
    std::unique_ptr<data::BatchStream> stream = {};
  };

  std::int64_t backward(std::size_t s, bool together) {
    for (const auto& [name, parameter] : sites_[s].parameters) parameter.mutable_grad().reset();
    const data::StepBatch batch = sites_[s].stream->next();
    std::int64_t samples = 0;
    for (const data::Example& part : batch.microbatches) samples += part.target.at(0).size(0);
    const auto count = static_cast<double>(together ? batch.global_size : samples);
    for (const data::Example& part : batch.microbatches) {
      const at::Tensor loss = torch::nn::functional::cross_entropy(
          trainers_[s]->model().forward(part.input.at(0)), part.target.at(0),
          torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
      loss.backward(at::full({}, 1 / count));
    }
    return batch.global_size;
  }

  void add_gradients() {
    for (std::size_t p = 0; p < outer_.size(); ++p) {
      at::Tensor sum = sites_[0].parameters[p].second.grad().clone();
      for (std::size_t s = 1; s < sites_.size(); ++s) sum += sites_[s].parameters[p].second.grad();
      for (Site& site : sites_) site.parameters[p].second.mutable_grad() = sum;
    }
  }

  /// MLP of 784, 8, 10: the cuts that minimize the largest fragment, and are otherwise even.
  int fragment_of(std::size_t parameter) const {
    if (rule_.fragments == 1) return 0;
    if (rule_.fragments == 2) return parameter == 0 ? 0 : 1;
    return static_cast<int>(parameter);
  }

  void outer_step(int fragment) {
    const bool average = std::string(rule_.outer) == "average",
               nesterov = std::string(rule_.outer) == "nesterov";
    for (std::size_t p = 0; p < outer_.size(); ++p) {
      if (fragment_of(p) != fragment) continue;
      const at::Tensor& gradient = difference_[p];
      if (average) {
        outer_[p] -= gradient;
      } else {
        const double lr = config_.parallel.outer_lr, mu = config_.parallel.outer_momentum;
        momentum_[p] = momentum_[p].defined() ? momentum_[p] * mu + gradient : gradient.clone();
        outer_[p] -= lr * (nesterov ? gradient + mu * momentum_[p] : momentum_[p]);
      }
      for (Site& site : sites_) {
        at::Tensor own = site.parameters[p].second.detach();
        rule_.delay == 0 ? own.copy_(outer_[p])
                         : own.copy_(own * rule_.mixing + outer_[p] * (1 - rule_.mixing));
      }
    }
    sent_[static_cast<std::size_t>(fragment)] = 0;
  }

  const Rule rule_;
  const RunConfig config_;
  std::shared_ptr<comm::Context> alone_;
  std::vector<std::unique_ptr<Trainer>> trainers_;
  std::vector<Site> sites_;
  std::vector<at::Tensor> outer_, momentum_, difference_;
  std::vector<std::int64_t> sent_;
};

class EachRule : public LocalRuns, public testing::WithParamInterface<Rule> {};
INSTANTIATE_TEST_SUITE_P(Table, EachRule, testing::ValuesIn(kRules),
                         [](const auto& row) { return std::string(row.param.name); });

TEST_P(EachRule, IsTheSerialProgramOfIt) {
  const Rule& rule = GetParam();
  RunConfig config = local("replay", rule);
  config.optimizer = {.name = "sgd", .lr = 0.05, .momentum = 0.9};
  const Trained found = trained(config, rule);
  const data::DataSource data = open_data(config, Log());
  config.comm.torch_threads = found.torch_threads;
  SerialSites serial(config, rule, data);
  for (std::int64_t step = 1; step <= 12; ++step) {
    serial.step(step);
    for (int site = 0; site < rule.sites; ++site) {
      const Values expected = serial.model(site);
      for (const auto& [name, value] :
           found.sites[static_cast<std::size_t>(step - 1)][static_cast<std::size_t>(site)]) {
        const double error = (value - expected.at(name)).abs().max().item<double>();
        ASSERT_LE(error, 1e-6) << name << " of site " << site << ", step " << step;
        const bool same_operations = std::string(rule.outer) == "average" && rule.delay == 0;
        ASSERT_TRUE(!same_operations || value.equal(expected.at(name))) << "the same bits";
      }
    }
  }
}

TEST_P(EachRule, ContinuesFromCheckpointWithSameBits) {
  const Rule& rule = GetParam();
  RunConfig whole = local("whole", rule), part = local("part", rule);
  whole.checkpoint.every_steps = 7;
  const RunResult expected = run(num_ranks(rule), whole);
  part.train.max_steps = 7;
  run(num_ranks(rule), part);
  part.train.max_steps = 12;
  const RunResult found = run(num_ranks(rule), part, RunStart::kResume);
  EXPECT_EQ(found.weights_xxh3, expected.weights_xxh3);
  EXPECT_EQ(found.evaluation, expected.evaluation);
}

TEST_P(EachRule, IsNotChangedByEvaluationsAndSaves) {
  const Rule& rule = GetParam();
  RunConfig quiet = local("quiet", rule), busy = local("busy", rule);
  quiet.checkpoint.every_steps = 0;
  busy.checkpoint.every_steps = 1;
  busy.eval.every_steps = 1;
  EXPECT_EQ(run(num_ranks(rule), busy).weights_xxh3, run(num_ranks(rule), quiet).weights_xxh3);
}

TEST_P(EachRule, ReachesTheAccuracyOfSynchronousTraining) {
  const Rule& rule = GetParam();
  RunConfig apart = local("apart", rule);
  apart.train.epochs = 20;
  apart.train.max_steps = 120;
  RunConfig together = apart;
  together.run.name = "together";
  together.parallel = {};
  const double reached = run(num_ranks(rule), together).evaluation->metric("accuracy").value;
  EXPECT_GT(reached, 0.9);
  EXPECT_GT(run(num_ranks(rule), apart).evaluation->metric("accuracy").value, reached - 0.02);
}

TEST_F(LocalRuns, FirstStepsMatchDataParallelism) {
  RunConfig post = local("post", {.name = "", .from = 12}), plain = config("plain");
  plain.train = post.train;
  EXPECT_EQ(run(2, post).weights_xxh3, run(2, plain).weights_xxh3);
}

TEST_F(LocalRuns, ReportMeanLossOfGlobalBatch) {
  RunConfig apart = local("apart", {.name = "", .sites = 3}), plain = config("plain");
  plain.train = apart.train;
  apart.train.global_batch = plain.train.global_batch = 511;  // sites have different numbers of samples
  const Rule three{.name = "", .sites = 3};
  const Trained found = trained(apart, three);
  ASSERT_EQ(found.losses.size(), 12);
  const data::DataSource data = open_data(plain, Log());
  comm::run_ranks_as_threads(3, [&](comm::Context& context) {
    Trainer trainer(plain, context, data);
    trainer.step();
    EXPECT_NEAR(trainer.last_report()->loss, found.losses.front(), 1e-6) << "of the same weights";
  });
}

TEST_F(LocalRuns, ModelOfRunIsMeanOfSites) {
  const Rule rule{.name = "", .sites = 3, .steps = 5};
  const RunConfig config = local("mean", rule);
  const Trained found = trained(config, rule);
  for (const auto& [name, mean] : found.mean) {
    std::vector<at::Tensor> sites;
    for (const Values& site : found.sites.back()) sites.push_back(site.at(name));
    EXPECT_LE((at::stack(sites).mean(0) - mean).abs().max().item<double>(), 1e-6) << name;
    EXPECT_GT((sites[0] - sites[1]).abs().max().item<double>(), 0) << "step 12 is inside of a round";
  }
}

TEST_F(LocalRuns, AreEvaluatedAndSavedAsMean) {
  const Rule rule{.name = "", .sites = 3, .steps = 100};  // they never synchronize
  const RunConfig config = local("saved", rule);
  const Trained found = trained(config, rule);
  const RunResult result = run(3, config);
  const checkpoint::TensorMap saved =
      checkpoint::load_safetensors(folder_ / "saved/model.safetensors").tensors;
  for (const auto& [name, mean] : found.mean) EXPECT_TRUE(saved.at(name).equal(mean)) << name;

  RunConfig alone = config;
  alone.parallel = {};
  const data::DataSource data = open_data(alone, Log());
  const auto context = comm::Context::join({}, alone.comm);
  Trainer trainer(alone, *context, data);
  const auto loss_of = [&](const Values& values) {
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : trainer.parameters()) parameter.detach().copy_(values.at(name));
    return trainer.evaluate().loss;
  };
  EXPECT_NEAR(result.evaluation->loss, loss_of(found.mean), 1e-5);
  EXPECT_GT(std::abs(result.evaluation->loss - loss_of(found.sites.back()[0])), 1e-4) << "of one site";
}

TEST_F(LocalRuns, BuffersAreAveragedToo) {
  const Rule rule{.name = "", .sites = 2, .steps = 4};
  const RunConfig config = local("buffers", rule);
  const data::DataSource data = open_data(config, Log());
  std::vector<at::Tensor> apart(2), agreed(2);
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    auto model = std::make_shared<test::FrozenNormModel>(784, 10);
    Trainer trainer(config, context, data, model);
    const auto rank = static_cast<std::size_t>(context.rank());
    while (trainer.steps_done() < 7) trainer.step();
    apart[rank] = model->running_mean().clone();
    trainer.step();
    agreed[rank] = model->running_mean().clone();
    while (trainer.last_report()) {
    }
  });
  EXPECT_FALSE(apart[0].equal(apart[1]));
  EXPECT_TRUE(agreed[0].equal(agreed[1]));
  EXPECT_GT(agreed[0].abs().max().item<double>(), 0);
}

TEST_F(LocalRuns, AnotherSiteCountContinuesFromModel) {
  const Rule four{.name = "", .outer = "nesterov", .sites = 4, .steps = 4};
  RunConfig changing = local("changing", four);
  changing.train.max_steps = 6;
  const Trained before = trained(changing, four);
  run(4, changing);
  for (const int sites : {2, 1, 4}) {
    comm::run_ranks_as_threads(sites, [&](comm::Context& context) {
      RunConfig next = changing;
      next.train.max_steps = 7;
      RunCallbacks look;
      look.on_start = [&](Trainer& trainer) {
        trainer.synchronize();
        for (const auto& [name, mean] : mean_of_sites(trainer)) {
          EXPECT_LE((mean - before.mean.at(name)).abs().max().item<double>(), 1e-6) << name << ", " << sites;
        }
        throw InvalidArgument("seen");
      };
      EXPECT_THROW(run_training(next, context, {.start = RunStart::kResume, .callbacks = look}), Error);
    });
  }
  changing.train.max_steps = 12;
  EXPECT_EQ(run(8, changing, RunStart::kResume).steps, 12) << "sites that are new have the models of others";
}

TEST_F(LocalRuns, ContinueDataParallelismAndReverse) {
  RunConfig apart = local("changing", {.name = "", .steps = 3}), plain = apart;
  plain.parallel = {};
  plain.train.max_steps = 6;
  run(2, plain);
  apart.train.max_steps = 9;
  apart.checkpoint.every_steps = 4;
  EXPECT_EQ(run(2, apart, RunStart::kResume).steps, 9);
  plain.train.max_steps = 12;
  EXPECT_EQ(run(2, plain, RunStart::kResume).steps, 12);
}

TEST_F(LocalRuns, PipelinePerSiteLearnsLikeOneRank) {
  const Rule rule{.name = "", .outer = "nesterov", .steps = 3};
  RunConfig whole = local("whole", rule), cut = local("cut", rule);
  for (RunConfig* each : {&whole, &cut}) each->optimizer = {.name = "sgd", .lr = 0.05, .momentum = 0.9};
  cut.parallel.pipeline = 2;
  whole.train.accumulation = 8;
  const RunResult expected = run(2, whole), found = run(4, cut);
  EXPECT_NEAR(found.evaluation->loss, expected.evaluation->loss, 1e-5);
  EXPECT_EQ(found.evaluation->samples, expected.evaluation->samples);
}

TEST_F(LocalRuns, ReportBytesSentToOtherSites) {
  const Rule rule{.name = "", .sites = 2, .ranks = 2, .steps = 4};
  const RunConfig config = local("bytes", rule);
  const data::DataSource data = open_data(config, Log());
  comm::run_ranks_as_threads(4, [&](comm::Context& context) {
    Trainer trainer(config, context, data);
    while (!trainer.finished()) trainer.step();
    while (trainer.last_report()) {
    }
    const std::int64_t model_bytes = 4 * (784 * 8 + 8 + 8 * 10 + 10);
    EXPECT_EQ(trainer.counters().sent_to_sites_bytes, 3 * model_bytes / 2)
        << "of two sites, a model in each of 3 rounds, half by each rank";
    trainer.synchronize();
    EXPECT_EQ(trainer.counters().sent_to_sites_bytes, 3 * model_bytes / 2) << "they agree: nothing goes";
  });
  const RunResult told = run(4, config);
  EXPECT_GT(told.sent_to_sites_bytes_of_step, 0);
  EXPECT_THAT(file("bytes", "summary.json"),
              HasSubstr(text("\"sent_to_sites_bytes_of_step\": ", told.sent_to_sites_bytes_of_step)));
}

TEST_F(LocalRuns, RejectsMisfitWithNearestOption) {
  const auto refused = [&](const auto& change, const std::string& reason, const std::string& cure) {
    RunConfig config = local("refused", {.name = "", .sites = 4});
    change(config);
    EXPECT_THAT([&] { resolve_plan(config, 4); },
                ThrowsMessage<InvalidArgument>(AllOf(HasSubstr(reason), HasSubstr(cure))));
  };
  refused([](RunConfig& c) { c.parallel.local_ranks = 3; }, "local_ranks = 3 does not cut 4 replicas",
          "parallel.local_ranks = 2");
  refused([](RunConfig& c) { c.parallel.local_delay = 4; }, "sent again", "parallel.local_delay = 3");
  refused([](RunConfig& c) { c.parallel.zero = 1; }, "each rank of a site needs all", "parallel.zero = 0");
  refused([](RunConfig& c) { c.parallel.compression = "int8"; }, "uncompressed gradients",
          "parallel.compression = \"none\"");
  refused([](RunConfig& c) { c.train.precision = "fp16"; }, "sites would not skip the same steps",
          "train.precision = \"bf16\"");
  refused([](RunConfig& c) { c.train.ema_decay = 0.9; }, "mean of the sites", "train.ema_decay = 0.0");
  refused([](RunConfig& c) { c.run.exact = true; }, "the number of sites", "run.exact = false");
  refused([](RunConfig& c) { c.parallel.local_steps = 1, c.parallel.outer_optimizer = "nesterov"; },
          "set parallel.local_steps", "parallel.outer_optimizer = \"average\"");
  refused([](RunConfig& c) { c.parallel.local_steps = 1, c.parallel.local_delay = 2; },
          "set parallel.local_steps", "parallel.local_delay = 0");
  refused(
      [](RunConfig& c) {
        c.parallel.pipeline = 2;
        c.parallel.local_fragments = 2;
      },
      "all of their weights at once", "parallel.local_fragments = 1");
}

TEST_F(LocalRuns, RejectVerificationWithAlternatives) {
  const RunConfig config = local("verify", {.name = "", .outer = "nesterov"});
  EXPECT_THAT(
      [&] { check_verifiable(resolve_plan(config, 2)); },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("steps of their own"), HasSubstr("local_steps = 1"))));
}

TEST_F(LocalRuns, RejectsMoreFragmentsThanParameters) {
  RunConfig config = local("fragments", {.name = "", .fragments = 5});
  EXPECT_THAT([&] { run(2, config); }, ThrowsMessage<InvalidArgument>(HasSubstr("4 parameters that learn")));
}

TEST_F(LocalRuns, ASiteThatDivergesIsNamed) {
  RunConfig config = local("diverges", {.name = "", .steps = 4});
  config.optimizer = {.name = "sgd", .lr = 1e30, .momentum = 0.9};
  EXPECT_THAT([&] { run(2, config); },
              ThrowsMessage<DivergedError>(HasSubstr("not a finite number on rank")));
}

}  // namespace
}  // namespace trireme::train
