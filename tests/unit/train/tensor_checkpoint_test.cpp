// Tensor-parallel models are saved and loaded on any number of ranks. The boxes of their parameters are the
// shards of a checkpoint.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/shared_folder.h"
#include "trireme/comm/context.h"
#include "trireme/model/initialise.h"
#include "trireme/parallel/tensor/attention.h"
#include "trireme/parallel/tensor/embedding.h"
#include "trireme/parallel/tensor/linear.h"

namespace trireme {
namespace {

constexpr std::int64_t kStep = 5;

/// No number of ranks above one divides the sizes. The vocabulary has fewer rows than there are ranks.
struct Net : torch::nn::Module {
  Net(const comm::Group& group, std::uint64_t seed) {
    register_module("tokens", std::make_shared<parallel::VocabularyParallelEmbedding>(group, 3, 10));
    register_module("attention", std::make_shared<parallel::ParallelAttention>(
                                     group, parallel::ParallelAttentionOptions{.width = 10, .heads = 5}));
    register_module("up", std::make_shared<parallel::ColumnParallelLinear>(
                              group, parallel::ParallelLinearOptions{.in = 10, .out = 7}));
    register_module("down", std::make_shared<parallel::RowParallelLinear>(
                                group, parallel::ParallelLinearOptions{.in = 7, .out = 10}));
    model::initialise(*this, seed);
    for (const auto& parameter : named_parameters()) moments.insert(parameter.key(), parameter.value() * 3);
  }
  /// Shards of the parameters, and of optimizer state with the same shapes.
  checkpoint::Shards shards() const {
    checkpoint::Shards all;
    for (const auto& box : model::parameter_boxes(*this)) {
      const auto add = [&](const std::string& name, const at::Tensor& tensor) {
        if (tensor.numel() > 0)
          all.push_back(
              {.name = name, .global_sizes = box.global_sizes, .offsets = box.offsets, .tensor = tensor});
      };
      add(box.name, box.values());
      add(checkpoint::kOptimizerPrefix + box.name, box.part_of(moments[box.name].detach()));
    }
    return all;
  }
  torch::OrderedDict<std::string, at::Tensor> moments;
};

std::vector<bool> all_see(const comm::Group& group) {
  return std::vector<bool>(static_cast<std::size_t>(group.size()), true);
}

void save(comm::Context& context, const std::filesystem::path& folder, const checkpoint::Shards& shards) {
  checkpoint::SaveShares shares(context.world(), shards, all_see(context.world()));
  const auto part = shares.next_part(shards, {.step = kStep});
  if (part) checkpoint::write_part(folder, *part);
  context.world().barrier();
  if (context.is_main()) checkpoint::finish_checkpoint(folder, *part, 1, [] { return false; });
  context.world().barrier();
}

void load(comm::Context& context, const std::filesystem::path& folder, const checkpoint::Shards& shards) {
  const auto found =
      checkpoint::find_latest_checkpoint(context.world(), folder, all_see(context.world()), Log("test"));
  ASSERT_TRUE(found.has_value());
  checkpoint::load_shards(context.world(), found->folder, shards, all_see(context.world()), "model");
}

TEST(TensorParallelCheckpoint, KeepsBitsOverAnyRankCounts) {
  const test::TemporaryFolder folder;
  comm::run_ranks_as_threads(
      3, [&](comm::Context& context) { save(context, folder.path(), Net(context.world(), 1).shards()); });
  for (const int ranks : {1, 4, 2, 5, 3}) {
    SCOPED_TRACE(text(ranks, " ranks"));
    comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
      const Net expected(context.world(), 1), net(context.world(), 2);
      load(context, folder.path(), net.shards());
      for (const auto& parameter : expected.named_parameters()) {
        EXPECT_TRUE(at::equal(net.named_parameters()[parameter.key()], parameter.value())) << parameter.key();
        EXPECT_TRUE(at::equal(net.moments[parameter.key()], expected.moments[parameter.key()]))
            << parameter.key();
      }
      save(context, folder.path(), net.shards());
    });
  }
}

}  // namespace
}  // namespace trireme
