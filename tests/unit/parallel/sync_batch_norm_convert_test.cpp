// Converts the batch norms of a whole module to norms over all ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>

#include "tests/unit/parallel/data_parallel_case.h"
#include "trireme/parallel/data/sync_batch_norm.h"

namespace trireme::parallel {
namespace {

namespace nn = torch::nn;
using testing::Not;
using testing::ThrowsMessage;

/// A residual block, with its norms in a Sequential and one as a member.
struct NormBlock : nn::Module {
  explicit NormBlock(std::int64_t width)
      : body(register_module(
            "body", nn::Sequential({{"conv1", nn::Conv2d(nn::Conv2dOptions(width, width, 3).padding(1))},
                                    {"bn1", nn::BatchNorm2d(width)},
                                    {"relu", nn::ReLU()},
                                    {"conv2", nn::Conv2d(nn::Conv2dOptions(width, width, 3).padding(1))},
                                    {"bn2", nn::BatchNorm2d(nn::BatchNormOptions(width).eps(1e-3))}}))),
        last(register_module("last", SyncBatchNorm(width))) {}
  at::Tensor forward(const at::Tensor& x) { return last->forward(body->forward(x) + x).relu(); }
  nn::Sequential body;
  SyncBatchNorm last;
};

struct NormResidual : nn::Module {
  NormResidual() {
    layers->push_back(nn::Conv2d(1, 4, 3));
    layers->push_back(NormBlock(4));
    layers->push_back(NormBlock(4));
    list->push_back(nn::BatchNorm1d(2));
    dict->update({{"norm", nn::BatchNorm3d(2).ptr()}});
    test::fill_parameters(*this);
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  nn::Sequential layers = register_module("layers", nn::Sequential());
  nn::ModuleList list = register_module("list", nn::ModuleList());
  nn::ModuleDict dict = register_module("dict", nn::ModuleDict());
};

std::vector<std::string> types_of(const nn::Module& module) {
  std::vector<std::string> types;
  for (const auto& each : module.modules(false)) types.push_back(each->name());
  return types;
}

TEST(ConvertSyncBatchNorm, ReplacesEveryLayerKeepingTensorsAndNames) {
  run_ranks_as_threads(1, [](Context& context) {
    NormResidual net;
    net.layers[1]->eval();
    const auto parameters = net.named_parameters(), buffers = net.named_buffers();
    EXPECT_EQ(convert_sync_batchnorm(net, context.world()), 8);
    const auto now = net.named_parameters(), now_buffers = net.named_buffers();
    ASSERT_EQ(now.keys(), parameters.keys());
    ASSERT_EQ(now_buffers.keys(), buffers.keys());
    for (const auto& item : now) EXPECT_TRUE(item.value().is_same(parameters[item.key()])) << item.key();
    for (const auto& item : now_buffers) EXPECT_TRUE(item.value().is_same(buffers[item.key()])) << item.key();
    EXPECT_THAT(types_of(net), testing::Each(Not(HasSubstr("torch::nn::BatchNorm"))));
    const auto& second = *net.layers[1]->as<NormBlock>()->body[4]->as<SyncBatchNormImpl>();
    EXPECT_EQ(second.options.eps(), 1e-3);
    EXPECT_FALSE(second.is_training());
    EXPECT_TRUE(net.layers[2]->as<NormBlock>()->last->is_training());
    EXPECT_NE(net.list[0]->as<SyncBatchNormImpl>(), nullptr);
    EXPECT_NE(net.dict["norm"]->as<SyncBatchNormImpl>(), nullptr);
  });
}

TEST(ConvertSyncBatchNorm, ForwardMatchesOneRankOnGlobalBatch) {
  const at::Tensor all = test::numbers_f64({4, 1, 6, 6}, 1);
  NormResidual alone;
  const at::Tensor expected = alone.forward(all);
  run_ranks_as_threads(
      2,
      [&](Context& context) {
        NormResidual net;
        EXPECT_EQ(convert_sync_batchnorm(net, context), 8);
        const at::Tensor mine = net.forward(all.narrow(0, 2 * context.rank(), 2));
        EXPECT_LE((mine - expected.narrow(0, 2 * context.rank(), 2)).abs().max().item<double>(), 1e-12);
        const auto clone = std::dynamic_pointer_cast<NormBlock>(net.layers[1]);
        EXPECT_EQ(convert_sync_batchnorm(*clone, context.world()), 3) << "once more";
      },
      kDeadline);
}

TEST(ConvertSyncBatchNorm, ReplacesSharedLayerOnce) {
  run_ranks_as_threads(1, [](Context& context) {
    nn::Sequential first(nn::BatchNorm1d(2)), second;
    second->push_back(*first->begin());
    nn::ModuleList net(first, second);
    EXPECT_EQ(convert_sync_batchnorm(*net, context.world()), 1);
    EXPECT_EQ(first[0], second[0]);
    EXPECT_NE(second[0]->as<SyncBatchNormImpl>(), nullptr);
  });
}

struct WithNormMember : nn::Module {
  at::Tensor forward(const at::Tensor& x) { return norm->forward(body->forward(x)); }
  nn::Sequential body = register_module("body", nn::Sequential(nn::BatchNorm2d(2)));
  nn::BatchNorm2d norm = register_module("norm", nn::BatchNorm2d(2));
};

struct OwnNormImpl : nn::BatchNorm1dImpl {
  using nn::BatchNorm1dImpl::BatchNorm1dImpl;
  at::Tensor forward(const at::Tensor& x) { return 2 * nn::BatchNorm1dImpl::forward(x); }
};

TEST(ConvertSyncBatchNorm, NamesIrreplaceableLayersAndChangesNothing) {
  run_ranks_as_threads(1, [](Context& context) {
    const auto converts = [&](nn::Module& module) {
      return [&] { convert_sync_batchnorm(module, context.world()); };
    };
    nn::Sequential with_member(WithNormMember{});
    EXPECT_THAT(converts(*with_member),
                ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("'0.norm'"), Not(HasSubstr("body")),
                                                     HasSubstr("trireme::SyncBatchNorm"))));
    EXPECT_NE(with_member[0]->as<WithNormMember>()->body[0]->as<nn::BatchNorm2dImpl>(), nullptr);
    nn::BatchNorm1d root(2);
    EXPECT_THAT(converts(*root), ThrowsMessage<InvalidArgument>(HasSubstr("the module itself")));
    nn::Sequential derived(nn::BatchNorm1d(2), OwnNormImpl(2));
    EXPECT_THAT(converts(*derived), ThrowsMessage<InvalidArgument>(
                                        AllOf(HasSubstr("'1'"), HasSubstr("derives from a batch norm"))));
    EXPECT_NE(derived[0]->as<nn::BatchNorm1dImpl>(), nullptr);
  });
}

}  // namespace
}  // namespace trireme::parallel
