#include "trireme/parallel/pipeline/internal/versioned_parameters.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme::parallel {
namespace {

at::Tensor leaf() { return at::full({3}, 1.0).requires_grad_(true); }
float first_value_of(const at::Tensor& tensor) { return tensor.detach()[0].item<float>(); }

/// Adds 1 to the newest version.
void update(VersionedParameters& versions) {
  const at::NoGradGuard no_grad;
  versions.begin_update();
  at::Tensor(versions.newest()[0].second).add_(1);
  versions.end_update();
}

TEST(VersionedParameters, ShowRequestedVersionInLeaves) {
  const at::Tensor weight = leaf();
  VersionedParameters versions({{"weight", weight}});
  versions.set_uses({2, 1, 1});
  versions.show(0);
  update(versions);
  EXPECT_EQ(first_value_of(weight), 1) << "a version in use is not touched by an update";
  versions.show(1);
  EXPECT_EQ(first_value_of(weight), 2);
  update(versions);
  versions.show(0);
  EXPECT_EQ(first_value_of(weight), 1);
  versions.show_newest();
  EXPECT_EQ(first_value_of(weight), 3);
  EXPECT_EQ(versions.num_kept(), 3);
}

TEST(VersionedParameters, ForgetUnusedVersionAndReuseStorage) {
  const at::Tensor weight = leaf();
  VersionedParameters versions({{"weight", weight}});
  versions.set_uses({2, 1, 1});
  versions.show(0);
  const void* first = weight.data_ptr();
  update(versions);
  versions.release(0);
  EXPECT_EQ(versions.num_kept(), 2) << "one use is left";
  versions.release(0);
  EXPECT_EQ(versions.num_kept(), 1);
  EXPECT_THROW(versions.show(0), InternalError);
  update(versions);
  versions.show_newest();
  EXPECT_EQ(weight.data_ptr(), first) << "storages go round";
  EXPECT_EQ(first_value_of(weight), 3);
}

TEST(VersionedParameters, UpdateUnusedVersionInPlace) {
  const at::Tensor weight = leaf();
  VersionedParameters versions({{"weight", weight}});
  versions.set_uses({1});
  versions.show(0);
  const void* storage = weight.data_ptr();
  versions.release(0);
  update(versions);
  EXPECT_EQ(versions.num_kept(), 1);
  versions.show_newest();
  EXPECT_EQ(weight.data_ptr(), storage);
}

TEST(VersionedParameters, GiveNewestScaledGradientForUpdate) {
  const at::Tensor weight = leaf();
  VersionedParameters versions({{"weight", weight}});
  versions.set_uses({1, 1});
  (weight * 4).sum().backward();
  versions.begin_update(0.5);
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_EQ(first_value_of(versions.newest()[0].second.grad()), 2);
  versions.end_update();
  EXPECT_FALSE(versions.newest()[0].second.grad().defined());
}

// A version that a graph has saved stays unchanged, because the backward of a product needs it.
TEST(VersionedParameters, LetBackwardUseWeightsOfForward) {
  const at::Tensor weight = leaf();
  VersionedParameters versions({{"weight", weight}});
  versions.set_uses({2, 1});
  versions.show(0);
  const at::Tensor loss = (weight * weight).sum();
  update(versions);
  versions.show(0);
  loss.backward();
  EXPECT_EQ(first_value_of(weight.grad()), 2) << "twice the old weight, not the new one";
}

TEST(VersionedParameters, RestartCountWithoutOldVersionsOnly) {
  const at::Tensor weight = leaf();
  VersionedParameters versions({{"weight", weight}});
  versions.set_uses({1, 1});
  update(versions);
  EXPECT_THROW(versions.restart(), InternalError);
  versions.release(0);
  versions.restart();
  EXPECT_EQ(versions.version(), 0);
  versions.show(0);
  EXPECT_EQ(first_value_of(weight), 2) << "the newest is the first of the next start";
}

}  // namespace
}  // namespace trireme::parallel
