// Gloo as a backend, used directly: the end of an abort, and concurrent operations.

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "trireme/comm/context.h"
#include "trireme/comm/internal/backend_table.h"

namespace trireme::comm {
namespace {

using Backend = c10::intrusive_ptr<c10d::Backend>;

constexpr double kForever_s = 1e6;
constexpr auto kUnderWay = std::chrono::milliseconds(300);
constexpr auto kHang = std::chrono::seconds(40);

std::vector<Backend> connected(int size) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<Backend> backends(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      BackendRequest request{.store = store,
                             .rank = rank,
                             .size = size,
                             .group_name = "group",
                             .world_ranks = {},
                             .host_ids = {},
                             .interface_addr = "127.0.0.1",
                             .operation_timeout_s = kForever_s};
      for (int each = 0; each < size; ++each) request.world_ranks.push_back(each);
      backends[static_cast<std::size_t>(rank)] = make_gloo_backend(request);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return backends;
}

// The next rank gave up and left after its first part of the sum, so its connection is already broken. The
// rank after it has not joined, and its connection is intact.
TEST(GlooBackend, AbortEndsWaitForAnyRank) {
  for (const int waiting : {0, 1, 2}) {
    SCOPED_TRACE(waiting);
    std::vector<Backend> ranks = connected(3);
    const auto at = [&](int behind) -> Backend& {
      return ranks[static_cast<std::size_t>((waiting + behind) % 3)];
    };
    std::vector<at::Tensor> sum{at::ones({100000})}, others{at::ones({100000})}, from_it{at::ones({1})};
    at(0)->allreduce(sum);
    at(1)->allreduce(others);
    std::this_thread::sleep_for(kUnderWay);
    at(1)->abort();
    at(1).reset();
    EXPECT_ANY_THROW(at(0)->recv(from_it, (waiting + 1) % 3, 0)->wait());
    auto gone = std::make_shared<std::promise<void>>();
    std::thread([gone, last = std::move(at(0))]() mutable {
      last->abort();
      last.reset();  // joins the threads of gloo
      gone->set_value();
    }).detach();
    ASSERT_EQ(gone->get_future().wait_for(kHang), std::future_status::ready) << "the group cannot end";
  }
}

// After an operation each of gloo's two threads stores the name of its type in a string of the group, without
// a lock. Names with heap memory in the string were freed twice: "malloc(): unaligned tcache chunk".
TEST(GlooBackend, ConcurrentOperationsKeepHeapIntact) {
  run_ranks_as_threads(2,
                       [](Context& context) {
                         constexpr int kSideBySide = 50, kRounds = 200;
                         Group& world = context.world();
                         const at::Tensor whole = at::ones({2});
                         std::vector<at::Tensor> parts(kSideBySide);
                         for (int round = 0; round < kRounds; ++round) {
                           std::vector<Pending> pending;
                           for (at::Tensor& part : parts) {
                             part = at::empty({1});
                             pending.push_back(world.reduce_scatter_async(part, whole));
                           }
                           for (Pending& each : pending) each.wait();
                           for (const at::Tensor& part : parts) ASSERT_EQ(part.item<float>(), 2);
                         }
                       },
                       {.backend = "gloo", .timeout_s = 60});
}

}  // namespace
}  // namespace trireme::comm
