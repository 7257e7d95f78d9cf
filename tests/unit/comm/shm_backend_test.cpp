// Properties beyond the operation suite of all backends: memory, dtypes compared with a serial computation,
// lists, unequal splits, futures, timeouts, and failures of the c10d interface over shared memory.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "trireme/base/error.h"
#include "trireme/comm/internal/backend_table.h"

namespace trireme::comm {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using Maker = c10::intrusive_ptr<c10d::Backend> (*)(const BackendRequest&);
using Tensors = std::vector<at::Tensor>;

/// Runs `body` as each rank. Returns the exception text of each ("" for none). shm between threads attaches
/// the memory of its own process, with the same code as between processes.
std::vector<std::string> run_ranks(Maker make, int size, const std::function<void(c10d::Backend&, int)>& body,
                                   const std::vector<std::string>& host_ids = {}, int missing = -1) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> ranks;
  for (int r = 0; r < size; ++r) {
    if (r == missing) continue;
    ranks.emplace_back([&, r] {
      try {
        std::vector<int> world_ranks;
        for (int i = 0; i < size; ++i) world_ranks.push_back(10 + i);
        const auto backend = make(BackendRequest{.store = store,
                                                 .rank = r,
                                                 .size = size,
                                                 .group_name = "tens",
                                                 .world_ranks = world_ranks,
                                                 .host_ids = host_ids,
                                                 .interface_addr = "127.0.0.1",
                                                 .ranks_on_cores = size,
                                                 .timeout_s = missing < 0 ? 20 : 0.2,
                                                 .operation_timeout_s = 20});
        body(*backend, r);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(r)] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return errors;
}

void all_reduce(c10d::Backend& backend, const at::Tensor& tensor) {
  Tensors tensors{tensor};
  backend.allreduce(tensors, {})->wait();
}

at::Tensor values_of(int rank, at::ScalarType dtype, long numel) {
  return at::full({numel}, 1.25 * rank + 0.5).add(at::full({numel}, 0.125)).to(dtype);
}

TEST(ShmBackend, SumsEveryDtypeInEveryMemory) {
  for (const Maker make : {make_shm_backend, make_threads_backend}) {
    const auto errors = run_ranks(make, 3, [](c10d::Backend& backend, int rank) {
      for (const at::ScalarType dtype :
           {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt, at::kLong}) {
        for (const long numel : {0L, 77L, 50001L}) {
          at::Tensor expected = values_of(0, dtype, numel);
          for (int r = 1; r < 3; ++r) expected += values_of(r, dtype, numel);
          at::Tensor own = values_of(rank, dtype, numel);
          at::Tensor allocated = backend.supportsTensorAlloc(0)
                                     ? backend.allocateTensor(numel + 8, own.options())
                                     : at::empty({numel + 8}, dtype);
          at::Tensor view = allocated.narrow(0, 8, numel);
          view.copy_(own);
          all_reduce(backend, own);
          all_reduce(backend, view);
          require(own.equal(expected) && view.equal(expected), at::toString(dtype), " x ", numel, " differs");
        }
      }
    });
    EXPECT_THAT(errors, Each(""));
  }
}

TEST(ShmBackend, CarriesListsAndUnequalSplits) {
  const auto errors = run_ranks(make_shm_backend, 2, [](c10d::Backend& backend, int rank) {
    Tensors input{at::full({3}, rank, at::kByte)};
    std::vector<Tensors> gathered{{at::empty({3}, at::kByte), at::empty({3}, at::kByte)}};
    backend.allgather(gathered, input, {})->wait();
    require(gathered[0][1].equal(at::full({3}, 1, at::kByte)), "all_gather");

    Tensors output{at::empty({5})};
    std::vector<Tensors> parts{{at::full({5}, 1.0 + rank), at::full({5}, 10.0 + rank)}};
    backend.reduce_scatter(output, parts, {})->wait();
    require(output[0].equal(at::full({5}, rank == 0 ? 3.0 : 21.0)), "reduce_scatter");

    // Rank 0 sends 1 row to itself and 2 to rank 1. Rank 1 sends 3 and 4.
    std::vector<std::int64_t> input_splits =
        rank == 0 ? std::vector<std::int64_t>{1, 2} : std::vector<std::int64_t>{3, 4};
    std::vector<std::int64_t> output_splits =
        rank == 0 ? std::vector<std::int64_t>{1, 3} : std::vector<std::int64_t>{2, 4};
    at::Tensor from = at::full({input_splits[0] + input_splits[1], 2}, rank);
    at::Tensor to = at::empty({output_splits[0] + output_splits[1], 2}, from.options());
    backend.alltoall_base(to, from, output_splits, input_splits, {})->wait();
    require(to[0][0].item<int>() == 0 && to[output_splits[0]][1].item<int>() == 1, "all_to_all");
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(ShmBackend, CompletesFuturesWithoutWait) {
  const auto errors = run_ranks(make_shm_backend, 2, [](c10d::Backend& backend, int rank) {
    Tensors tensors{at::full({100000}, 1.0 + rank)};
    const auto work = backend.allreduce(tensors, {});
    const auto future = work->getFuture();
    future->wait();
    require(future->value().toTensorVector()[0][99999].item<float>() == 3, "wrong value");
    require(work->isCompleted() && work->isSuccess() && work->result().size() == 1, "not completed");
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(ShmBackend, KeepsDroppedTensorsAliveUntilOperationEnds) {
  const auto errors = run_ranks(make_shm_backend, 2, [](c10d::Backend& backend, int rank) {
    c10::intrusive_ptr<c10d::Work> work;
    {
      Tensors tensors{backend.allocateTensor(200000, at::kFloat).fill_(1 + rank)};
      work = backend.allreduce(tensors, {});
    }
    work->wait();
    require(work->result()[0][7].item<float>() == 3, "wrong value");
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(ShmBackend, WaitTimeoutNamesTheWorldRank) {
  std::atomic<bool> over{false};
  const auto errors = run_ranks(make_threads_backend, 2, [&](c10d::Backend& backend, int rank) {
    if (rank == 1) {
      while (!over) std::this_thread::yield();
      return;
    }
    Tensors tensors{at::full({10}, 1.0)};
    try {
      backend.allreduce(tensors, {})->wait(std::chrono::milliseconds(50));
    } catch (const CommError&) {
      over = true;
      throw;
    }
  });
  EXPECT_THAT(errors[0],
              AllOf(HasSubstr("all_reduce #1 of group tens: rank 11"), HasSubstr("did not arrive")));
}

TEST(ShmBackend, AbortEndsWaitOfPeer) {
  const auto errors = run_ranks(make_shm_backend, 2, [](c10d::Backend& backend, int rank) {
    if (rank == 1) return backend.abort();
    all_reduce(backend, at::full({10}, 1.0));
  });
  EXPECT_EQ(errors[0], "group tens was aborted on rank 11");
}

TEST(ShmBackend, NamesTheRankThatNeverJoins) {
  const auto errors = run_ranks(
      make_shm_backend, 3, [](c10d::Backend&, int) {}, {}, 2);
  EXPECT_THAT(errors[0], HasSubstr("group tens: rank 12 did not join the shared memory group within 200 ms"));
}

TEST(ShmBackend, RejectsRanksOfSeveralHostsByName) {
  const auto errors = run_ranks(make_shm_backend, 2, [](c10d::Backend&, int) {}, {"north", "south"});
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("rank 11 runs on host south"), HasSubstr("rank 10 on host north"))));
}

}  // namespace
}  // namespace trireme::comm
