#include "trireme/parallel/counted_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "trireme/comm/context.h"
#include "trireme/comm/tensor_blocks.h"

namespace trireme::parallel {
namespace {

constexpr std::int64_t kNumel = 1 << 20, kBytes = 4 * kNumel;

/// Other tests of this process may hold memory, so only differences are meaningful.
std::int64_t bytes_of(MemoryKind kind) { return MemoryLedger::of_process().now()[kind]; }

TEST(CountedMemory, HasKindOfOwnerUntilReleased) {
  count_allocations();
  count_allocations();
  const std::int64_t unnamed = bytes_of(MemoryKind::kActivations), weights = bytes_of(MemoryKind::kWeights);
  at::Tensor tensor = at::ones({kNumel});
  EXPECT_EQ(bytes_of(MemoryKind::kActivations) - unnamed, kBytes);
  count_as(MemoryKind::kWeights, tensor.narrow(0, 5, 7));  // counts for the whole memory
  EXPECT_EQ(bytes_of(MemoryKind::kActivations), unnamed);
  EXPECT_EQ(bytes_of(MemoryKind::kWeights) - weights, kBytes);
  std::thread([moved = std::move(tensor)]() mutable { moved.reset(); }).join();
  EXPECT_EQ(bytes_of(MemoryKind::kWeights), weights);
  count_as(MemoryKind::kWeights, at::Tensor());
}

TEST(CountedMemory, CountsSmallAndMappedTensors) {
  comm::keep_tensor_blocks();
  count_allocations();
  for (const std::int64_t numel : {std::int64_t{2048}, kNumel}) {
    const std::int64_t unnamed = bytes_of(MemoryKind::kActivations);
    at::Tensor tensor = at::ones({numel});
    EXPECT_EQ(bytes_of(MemoryKind::kActivations) - unnamed, 4 * numel);
    tensor.reset();
    EXPECT_EQ(bytes_of(MemoryKind::kActivations), unnamed);
  }
}

TEST(CountedMemory, CountsLateMappingsOnce) {
  count_allocations();
  comm::keep_tensor_blocks();
  for (const std::int64_t numel : {std::int64_t{2048}, kNumel}) {
    const std::int64_t unnamed = bytes_of(MemoryKind::kActivations), weights = bytes_of(MemoryKind::kWeights);
    at::Tensor tensor = at::ones({numel});
    EXPECT_EQ(bytes_of(MemoryKind::kActivations) - unnamed, 4 * numel);
    count_as(MemoryKind::kWeights, tensor);
    EXPECT_EQ(bytes_of(MemoryKind::kActivations), unnamed);
    EXPECT_EQ(bytes_of(MemoryKind::kWeights) - weights, 4 * numel);
    tensor.reset();
    EXPECT_EQ(bytes_of(MemoryKind::kWeights), weights);
  }
}

TEST(CountedMemory, LeavesManualAllocationsToAllocator) {
  count_allocations();
  const std::int64_t unnamed = bytes_of(MemoryKind::kActivations);
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  void* const memory = allocator->raw_allocate(kBytes);
  std::memset(memory, 1, kBytes);
  EXPECT_EQ(bytes_of(MemoryKind::kActivations) - unnamed, kBytes);
  allocator->raw_deallocate(memory);
  EXPECT_EQ(bytes_of(MemoryKind::kActivations), unnamed);
}

TEST(CountedMemory, ReportsCommunicationAndSharedMemory) {
  comm::run_ranks_as_threads(2,
                             [](comm::Context& context) {
                               comm::Group world = context.world();
                               world.barrier();
                               const std::int64_t before = bytes_of(MemoryKind::kCommunication);
                               world.barrier();
                               const at::Tensor buffer = world.allocate(kNumel, at::kFloat);
                               const at::Tensor common = world.allocate_shared(kNumel, at::kFloat);
                               world.barrier();
                               EXPECT_EQ(bytes_of(MemoryKind::kCommunication) - before, 3 * kBytes);
                               world.barrier();
                             },
                             {.backend = "shm", .timeout_s = 20});
}

}  // namespace
}  // namespace trireme::parallel
