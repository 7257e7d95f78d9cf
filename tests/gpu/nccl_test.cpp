#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "trireme/comm/internal/backend_table.h"
#include "trireme/comm/internal/cuda_object.h"

namespace trireme::comm {
namespace {

TEST(Nccl, AllReducesOnOneGpu) {
  if (const auto reason = nccl_unavailable_because(); !reason.empty()) GTEST_SKIP() << reason;
  const BackendRequest request{.store = c10::make_intrusive<c10d::HashStore>(),
                               .rank = 0,
                               .size = 1,
                               .group_name = "gpu",
                               .world_ranks = {0},
                               .host_ids = {"here"},
                               .interface_addr = "127.0.0.1",
                               .timeout_s = 60};
  const auto backend = make_nccl_backend(request);
  std::vector<at::Tensor> tensors{at::ones({1000}, at::device(at::kCUDA))};
  backend->allreduce(tensors)->wait();
  EXPECT_EQ(tensors[0].sum().item<double>(), 1000);
  backend->shutdown();
}

TEST(CudaObject, PinnedMemoryIsCopiedToTheDevice) {
  if (const auto reason = nccl_unavailable_because(); !reason.empty()) GTEST_SKIP() << reason;
  const CudaObject& cuda = cuda_object();
  constexpr std::size_t kNumel = 1000;
  auto* pinned = static_cast<float*>(cuda.allocate_pinned(kNumel * sizeof(float)));
  ASSERT_NE(pinned, nullptr);
  for (std::size_t i = 0; i < kNumel; ++i) pinned[i] = 2;
  auto tensor = at::ones({kNumel}, at::device(at::kCUDA));
  EXPECT_EQ(cuda.prefetch(tensor.mutable_data_ptr(), pinned, kNumel * sizeof(float), 0), nullptr);
  EXPECT_EQ(tensor.sum().item<double>(), 2000);
  cuda.free_pinned(pinned);
}

}  // namespace
}  // namespace trireme::comm
