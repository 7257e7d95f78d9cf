#include "trireme/comm/tensor_blocks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "trireme/base/large_blocks.h"
#include "trireme/comm/context.h"

namespace trireme::comm {
namespace {

std::size_t in_use() { return LargeBlocks::of_process().use().in_use_bytes; }

TEST(TensorBlocks, HoldLargeTensorsOutsideTheHeap) {
  keep_tensor_blocks();
  keep_tensor_blocks();
  const std::size_t before = in_use();
  at::Tensor large = at::ones({1 << 20});
  const void* const place = large.const_data_ptr();
  EXPECT_EQ(in_use() - before, 4U << 20);
  const at::Tensor small = at::ones({1 << 10});
  EXPECT_EQ(in_use() - before, 4U << 20);
  std::thread([moved = std::move(large)]() mutable { moved.reset(); }).join();
  EXPECT_EQ(in_use(), before);
  EXPECT_EQ(at::ones({1 << 20}).const_data_ptr(), place) << "in place";
}

TEST(TensorBlocks, IncludeThoseAllocatedByHand) {
  keep_tensor_blocks();
  const std::size_t before = in_use();
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  for (const std::size_t bytes : {std::size_t{64}, std::size_t{4096}, std::size_t{8} << 20}) {
    void* const memory = allocator->raw_allocate(bytes);
    *static_cast<char*>(memory) = 1;
    EXPECT_EQ(in_use() - before, bytes < LargeBlocks::kMinBytes ? 0 : bytes);
    allocator->raw_deallocate(memory);
    EXPECT_EQ(in_use(), before);
  }
}

/// Writable private memory of this process, mapped or in its heap.
std::size_t own_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  std::size_t kib = 0;
  while (status >> word && word != "VmData:") continue;
  status >> kib;
  return kib << 10;
}

/// Steps with tensors of varying sizes and lifetimes. Returns the largest number of bytes at a time.
std::size_t run_steps(int steps) {
  std::size_t most = 0;
  for (int step = 0; step < steps; ++step) {
    std::vector<at::Tensor> held(6);
    for (int i = 0; i < 40; ++i) {
      const std::int64_t mib = 1 + (i * 7 + step * 3) % 13;
      at::Tensor& place = held[static_cast<std::size_t>((i * 5 + step) % 6)];
      place.reset();
      place = at::empty({mib << 18});
      most = std::max(most, in_use());
    }
  }
  return most;
}

TEST(TensorBlocks, TakeTenthMoreThanUse) {
  keep_tensor_blocks();
  const std::size_t most = run_steps(50);
  LargeBlocks::of_process().release();
  rlimit before{};
  ::getrlimit(RLIMIT_DATA, &before);
  rlimit limit = before;
  limit.rlim_cur = own_bytes() + most + most / 10;
  ASSERT_EQ(::setrlimit(RLIMIT_DATA, &limit), 0);
  EXPECT_NO_THROW(run_steps(50));
  const rlimit too_little{.rlim_cur = limit.rlim_cur - most / 2, .rlim_max = before.rlim_max};
  LargeBlocks::of_process().release();
  ::setrlimit(RLIMIT_DATA, &too_little);
  EXPECT_THROW(run_steps(1), std::exception) << "the limit is none";
  ::setrlimit(RLIMIT_DATA, &before);
}

// Two ranks. Their parts arrive in 2 MiB for each operation, and a copy of a whole would be 64 MiB.
TEST(TensorBlocks, GlooShardOperationsUseTensorBlocks) {
  rlimit before{};
  ::getrlimit(RLIMIT_DATA, &before);
  run_ranks_as_threads(2,
                       [&](Context& context) {
                         Group world = context.world();
                         constexpr std::int64_t kPart = 8 << 20;
                         at::Tensor whole = at::ones({2 * kPart}), part = at::ones({kPart}),
                                    few = at::ones({2}), one = at::ones({1});
                         world.reduce_scatter(one, few);
                         world.all_gather(few, one);
                         world.barrier();
                         if (context.is_main()) {
                           LargeBlocks::of_process().release();
                           const rlimit limit{.rlim_cur = own_bytes() + (24U << 20),
                                              .rlim_max = before.rlim_max};
                           EXPECT_EQ(::setrlimit(RLIMIT_DATA, &limit), 0);
                         }
                         world.barrier();
                         for (int time = 0; time < 3; ++time) {
                           world.reduce_scatter(part, whole);
                           world.all_gather(whole, part);
                         }
                         world.barrier();
                         if (context.is_main()) {
                           EXPECT_THROW(at::ones({2 * kPart}), std::exception) << "the limit is none";
                           ::setrlimit(RLIMIT_DATA, &before);
                         }
                         world.barrier();  // the limit is that of both ranks
                         EXPECT_TRUE(whole.eq(8).all().item<bool>());
                       },
                       {.backend = "gloo", .timeout_s = 60});
}

TEST(TensorBlocks, LeaveTooLargeTensorToLibtorch) {
  keep_tensor_blocks();
  EXPECT_THROW(at::ones({std::int64_t{1} << 55}), std::exception);
}

}  // namespace
}  // namespace trireme::comm
