// The mesh axis of experts: its place in meshes and groups, features that exclude it, and checkpoints of
// tensors that are split along it.
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include <mutex>

#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/mesh_axes.h"
#include "trireme/checkpoint/shared_folder.h"
#include "trireme/model/experts.h"
#include "trireme/model/parameter_box.h"
#include "trireme/train/plan/placement.h"
#include "trireme/train/run/recovery.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kExperts = 4;

ModelShape shape_with(std::int64_t experts) { return {.name = "Mine", .parameters = {}, .experts = experts}; }

RunConfig config_with_experts(std::int64_t ranks) {
  RunConfig config;
  config.data.name = "synthetic";
  config.parallel.expert = ranks;
  return config;
}

TEST(Axes, AreThoseOfTheDocumentation) {
  const std::string page = read_file(test::checkout("docs/hybrid.md"));
  std::size_t last = 0;
  for (const AxisRow& row : mesh_axes()) {
    const std::string line = text("\n| `", row.name, "` | ", row.who, " | ", row.exchange, " | ");
    const std::size_t at = page.find(line);
    ASSERT_NE(at, std::string::npos) << "the table of docs/hybrid.md is to have" << line;
    EXPECT_GT(at, last) << row.name << " is out of order";
    last = at;
  }
}

TEST(Axes, AreNamedByKeysOfTheConfiguration) {
  std::vector<std::string> keys;
  for (const ConfigKeyInfo& key : config_keys()) keys.push_back(key.name);
  for (const AxisRow& row : mesh_axes()) EXPECT_THAT(keys, testing::Contains(row.key)) << row.name;
}

TEST(ExpertAxis, LiesInsideTheReplicas) {
  RunConfig config = config_with_experts(2);
  config.parallel.pipeline = 2;
  config.parallel.tensor = 2;
  const ParallelPlan plan = resolve_plan(config, 16);
  EXPECT_EQ(plan.mesh(), MeshShape({{"pp", 2}, {"dp", 2}, {"ep", 2}, {"tp", 2}}));
  EXPECT_EQ(plan.num_replicas(), 4) << "each reads samples of its own";
  EXPECT_EQ(plan.weight_copies(), 4);
  EXPECT_EQ(plan.pipeline_ranks(), 2);
  EXPECT_TRUE(plan.has_sharded_parameters());
}

TEST(ExpertAxis, IsAcceptedWhereItDividesExperts) {
  const ParallelPlan plan = resolve_plan(config_with_experts(2), 6, shape_with(kExperts));
  EXPECT_EQ(plan.mesh(), MeshShape({{"pp", 1}, {"dp", 3}, {"ep", 2}}));
  RunConfig all = config_with_experts(4);
  all.parallel.data = 4;
  EXPECT_EQ(resolve_plan(all, 4, shape_with(kExperts)).mesh(), MeshShape({{"pp", 1}, {"dp", 1}, {"ep", 4}}));
}

TEST(ExpertAxis, RejectsModelsWithoutDivisibleExperts) {
  EXPECT_THAT([] { resolve_plan(config_with_experts(2), 4, shape_with(0)); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("parallel.expert = 2: the model of type Mine has no experts"),
                        HasSubstr("nearest plan that works on 4 ranks: parallel.expert = 1"))));
  EXPECT_THAT(
      [] { resolve_plan(config_with_experts(4), 8, shape_with(6)); },
      ThrowsMessage<InvalidArgument>(AllOf(
          HasSubstr(
              "has 6 experts, which cannot be sharded evenly over so many ranks; possible: 1, 2, 3 or 6"),
          HasSubstr("parallel.expert = 2"))));
  EXPECT_THAT(
      [] { resolve_plan(config_with_experts(4), 6); },
      ThrowsMessage<InvalidArgument>(HasSubstr("parallel.expert = 4 does not fit 6 ranks; start it with "
                                               "-n 4 or a multiple of it")));
  RunConfig three = config_with_experts(2);
  three.parallel.data = 3;
  EXPECT_THAT([&] { resolve_plan(three, 3); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("parallel.data = 3 replicas cannot be cut into groups of parallel.expert = 2")));
}

TEST(ExpertAxis, IsRejectedForEveryShippedModel) {
  const ParallelPlan plan = resolve_plan(config_with_experts(2), 2);
  for (const std::string& name : model::model_names()) {
    const bool of_tokens = name == "gpt";
    const auto model = model::make_model(
        {.name = name, .layers = 1},
        of_tokens ? std::vector<std::int64_t>{8} : std::vector<std::int64_t>{3, 32, 32}, 10, /*seed=*/1);
    EXPECT_THAT([&] { fit(plan, *model); },
                ThrowsMessage<InvalidArgument>(
                    AllOf(HasSubstr("has no experts"), HasSubstr("works on 2 ranks: parallel.expert = 1"))))
        << name;
  }
}

TEST(ExpertAxis, RejectsFeaturesWithIdenticalReplicas) {
  RunConfig sharded = config_with_experts(2);
  sharded.parallel.zero = 1;
  EXPECT_THAT([&] { resolve_plan(sharded, 4); },
              ThrowsMessage<InvalidArgument>(AllOf(
                  HasSubstr("parallel.expert = 2 needs all parameters and optimizer state on each replica"),
                  HasSubstr("parallel.zero = 1"))));
  RunConfig exact = config_with_experts(2);
  exact.run.exact = true;
  EXPECT_THAT(
      [&] { resolve_plan(exact, 4); },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("run.exact"), HasSubstr("parallel.expert = 2"))));
}

TEST(ExpertAxis, HasGroupsOfExpertsAndCopies) {
  RunConfig config = config_with_experts(2);
  config.parallel.context = 2;
  const ParallelPlan plan = resolve_plan(config, 8);
  ASSERT_EQ(plan.mesh(), MeshShape({{"pp", 1}, {"dp", 2}, {"ep", 2}, {"cp", 2}}));
  comm::run_ranks_as_threads(8, [&](comm::Context& context) {
    const PlanGroups groups = make_groups(plan, context);
    const int rank = context.rank(), dp = rank / 4, ep = rank / 2 % 2, cp = rank % 2;
    EXPECT_THAT(groups.experts->world_ranks(), ElementsAre(4 * dp + cp, 4 * dp + 2 + cp));
    EXPECT_EQ(groups.experts->rank(), ep);
    EXPECT_THAT(groups.expert_copies->world_ranks(),
                ElementsAre(2 * ep, 2 * ep + 1, 4 + 2 * ep, 4 + 2 * ep + 1));
    EXPECT_THAT(groups.replicas->world_ranks(), ElementsAre(cp, 2 + cp, 4 + cp, 6 + cp));
    EXPECT_EQ(groups.copies->size(), 8);
    EXPECT_EQ(groups.draw_number, rank);
    EXPECT_EQ(groups.model_parallel.size(), 8);
  });
}

TEST(ExpertAxis, OneRankHasNoGroup) {
  comm::run_ranks_as_threads(2, [](comm::Context& context) {
    const PlanGroups groups = make_groups(resolve_plan(config_with_experts(1), 2), context);
    EXPECT_FALSE(groups.experts.has_value());
    EXPECT_EQ(groups.expert_copies->world_ranks(), groups.copies->world_ranks());
    EXPECT_THAT(groups.replicas->name(), HasSubstr("world"));
  });
}

/// Experts in the rows of one parameter, of which a rank has its own, and a router that all ranks have.
class Mixture : public model::Model, public model::HasExperts, public model::HoldsParts {
 public:
  Mixture(int place, int ranks) : first_(kExperts / ranks * place) {
    router_ = register_module("router", torch::nn::Linear(3, kExperts));
    experts_ = register_parameter("experts", at::zeros({kExperts / ranks, 3, 2}));
  }
  std::int64_t num_experts() const override { return kExperts; }
  std::vector<model::ParameterBox> boxes() const override {
    return {{.name = "experts",
             .global_sizes = {kExperts, 3, 2},
             .offsets = {first_, 0, 0},
             .sizes = experts_.sizes().vec(),
             .parameter = experts_,
             .places = {0, 0, 0},
             .is_part = true}};
  }
  at::Tensor forward(const at::Tensor& input) override { return router_->forward(input); }
  checkpoint::TensorMap tensors() const {
    checkpoint::TensorMap tensors;
    for (const auto& item : named_parameters()) tensors.emplace(item.key(), item.value().detach());
    return tensors;
  }

 private:
  const std::int64_t first_;
  torch::nn::Linear router_ = nullptr;
  at::Tensor experts_;
};

/// The mixture of a plan on a rank, with its optimizer moments.
struct Held {
  Held(const ParallelPlan& plan, comm::Context& context)
      : model(plan.mesh().coordinate(context.rank(), "ep"), plan.expert_ranks()) {
    for (const auto& [name, tensor] : model.tensors()) moments.emplace(name, at::zeros_like(tensor));
  }
  StateParts parts() const {
    const ShardSpecs held{.cut = cut_parameters(model), .pieces = {}};
    return {state_part("", model.tensors(), held),
            state_part(text(checkpoint::kOptimizerPrefix, "moment/"), moments, held)};
  }
  /// Fills in a different number for each element of the whole.
  void fill() {
    for (const StatePart& part : parts()) {
      for (const checkpoint::Shard& shard : part.shards) {
        at::Tensor whole = at::arange(whole_box_numel(shard), at::kFloat).view(shard.global_sizes);
        if (!part.prefix.empty()) whole = whole.neg();
        at::Tensor(shard.tensor)
            .copy_(checkpoint::view_of(whole, checkpoint::whole_box(shard.global_sizes), shard.box()));
      }
    }
  }
  bool is_filled() const {
    for (const StatePart& part : parts()) {
      for (const checkpoint::Shard& shard : part.shards) {
        at::Tensor whole = at::arange(whole_box_numel(shard), at::kFloat).view(shard.global_sizes);
        if (!part.prefix.empty()) whole = whole.neg();
        if (!shard.tensor.equal(
                checkpoint::view_of(whole, checkpoint::whole_box(shard.global_sizes), shard.box())))
          return false;
      }
    }
    return true;
  }
  static std::int64_t whole_box_numel(const checkpoint::Shard& shard) {
    return checkpoint::whole_box(shard.global_sizes).numel();
  }
  Mixture model;
  checkpoint::TensorMap moments;
};

ParallelPlan plan_of(int ranks, int experts) {
  return resolve_plan(config_with_experts(experts), ranks, shape_with(kExperts));
}

std::vector<bool> all_see(const comm::Context& context) {
  return std::vector<bool>(static_cast<std::size_t>(context.world_size()), true);
}

TEST(ExpertCheckpoint, IsWrittenOnceForAnyExpertRanks) {
  const test::TemporaryFolder folder;
  std::mutex mutex;
  std::int64_t written = 0, of_experts = 0;
  comm::run_ranks_as_threads(4, [&](comm::Context& context) {
    Held held(plan_of(4, 2), context);
    held.fill();
    const checkpoint::Shards shards = shards_of(held.parts());
    checkpoint::SaveShares shares(context.world(), shards, all_see(context));
    const auto part = shares.next_part(shards, {.step = 5});
    if (part) {
      checkpoint::write_part(folder.path(), *part);
      const std::lock_guard lock(mutex);
      for (const checkpoint::Shard& shard : part->shards) {
        written += shard.tensor.numel();
        if (shard.name == "experts") of_experts += shard.tensor.numel();
      }
    }
    checkpoint::save_together(context.world(), part, folder.path(), 1);
  });
  EXPECT_EQ(of_experts, kExperts * 3 * 2) << "each expert by one of the two ranks that hold it";
  EXPECT_EQ(written, 2 * (kExperts * 3 * 2 + kExperts * 3 + kExperts)) << "values and moments, once";
  for (const auto& [ranks, experts] :
       std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {4, 4}, {8, 4}, {2, 2}}) {
    SCOPED_TRACE(text(ranks, " ranks, ", experts, " along ep"));
    comm::run_ranks_as_threads(ranks, [&, experts = experts](comm::Context& context) {
      const auto found =
          checkpoint::find_latest_checkpoint(context.world(), folder.path(), all_see(context), Log("test"));
      ASSERT_TRUE(found.has_value());
      Held held(plan_of(context.world_size(), experts), context);
      EXPECT_FALSE(held.is_filled());
      restore_state(held.parts(), context, found->folder, all_see(context));
      EXPECT_TRUE(held.is_filled()) << "rank " << context.rank();
    });
  }
}

TEST(ExpertCheckpoint, ReplicaChecksSeparateExpertsOfRanks) {
  const Mixture first(0, 2), second(1, 2);
  const ShardSpecs of_first{.cut = cut_parameters(first), .pieces = {}},
      of_second{.cut = cut_parameters(second), .pieces = {}};
  EXPECT_NE(of_first.label_of("experts"), of_second.label_of("experts"));
  EXPECT_EQ(of_first.label_of("router.weight"), of_second.label_of("router.weight"));
}

/// A model of images that claims to have experts.
class SaysItHasExperts : public model::Model, public model::HasExperts {
 public:
  explicit SaysItHasExperts(std::int64_t pixels) {
    linear_ = register_module("linear", torch::nn::Linear(pixels, 10));
  }
  std::int64_t num_experts() const override { return kExperts; }
  at::Tensor forward(const at::Tensor& input) override { return linear_->forward(input.flatten(1)); }

 private:
  torch::nn::Linear linear_ = nullptr;
};

/// The trainer would add gradients of experts over all replicas.
TEST(ExpertAxis, IsRejectedByTheTrainer) {
  comm::run_ranks_as_threads(2, [](comm::Context& context) {
    const auto train_over = [&](std::int64_t ranks) {
      const RunConfig config = config_with_experts(ranks);
      const data::DataSource data = data::open_data(config.data);
      const std::int64_t pixels = data.train->trial_batch(1).input.at(0).numel();
      const Trainer trainer(config, context, data, std::make_shared<SaysItHasExperts>(pixels));
    };
    EXPECT_NO_THROW(train_over(1));
    EXPECT_THAT([&] { train_over(2); }, ThrowsMessage<InvalidArgument>(
                                            AllOf(HasSubstr("parallel.expert = 2"), HasSubstr("trainer"))));
  });
}

}  // namespace
}  // namespace trireme::train
