#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "trireme/comm/internal/backend_table.h"

namespace trireme::comm {
namespace {

/// A group of one rank: NCCL rejects two ranks on one GPU.
c10::intrusive_ptr<c10d::Backend> alone_on_the_gpu() {
  return make_nccl_backend({.store = c10::make_intrusive<c10d::HashStore>(),
                            .rank = 0,
                            .size = 1,
                            .group_name = "gpu",
                            .world_ranks = {0},
                            .host_ids = {"here"},
                            .interface_addr = "127.0.0.1",
                            .timeout_s = 60});
}

at::Tensor first_numbers(std::int64_t count) {
  return at::arange(count, at::device(at::kCUDA).dtype(at::kFloat));
}

// The sum over one rank equals its input. A factor changes it.
TEST(Nccl, AllReducesOnOneGpu) {
  if (const auto reason = nccl_unavailable_because(); !reason.empty()) GTEST_SKIP() << reason;
  const auto backend = alone_on_the_gpu();
  std::vector<at::Tensor> tensors{first_numbers(1000)};
  c10d::AllreduceOptions options;
  options.reduceOp.op_ = c10d::ReduceOp::PREMUL_SUM;
  options.reduceOp.supplement_ = c10::make_intrusive<c10d::NCCLPreMulSumSupplement>(3.0);
  backend->allreduce(tensors, options)->wait();
  EXPECT_TRUE(tensors[0].cpu().equal(3 * first_numbers(1000).cpu()));
  backend->shutdown();
}

TEST(Nccl, GathersAndScattersIntoOtherMemory) {
  if (const auto reason = nccl_unavailable_because(); !reason.empty()) GTEST_SKIP() << reason;
  const auto backend = alone_on_the_gpu();
  at::Tensor input = first_numbers(1000), gathered = at::zeros_like(input), scattered = at::zeros_like(input);
  backend->_allgather_base(gathered, input)->wait();
  EXPECT_TRUE(gathered.cpu().equal(input.cpu()));
  backend->_reduce_scatter_base(scattered, input)->wait();
  EXPECT_TRUE(scattered.cpu().equal(input.cpu()));
  backend->shutdown();
}

}  // namespace
}  // namespace trireme::comm
