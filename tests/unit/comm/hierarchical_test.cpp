// Several hosts, simulated by different host ids of the ranks of one process.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "trireme/base/error.h"
#include "trireme/comm/all_reduce_setting.h"
#include "trireme/comm/internal/backend_table.h"
#include "trireme/comm/internal/host_layout.h"

namespace trireme::comm {
namespace {

using Hosts = std::vector<std::string>;

class Hierarchical : public testing::TestWithParam<Hosts> {
 protected:
  /// Runs ranks that leave together.
  void run(const std::function<void(c10d::Backend&)>& body) {
    on_each_rank([&](c10d::Backend& backend) {
      body(backend);
      backend.barrier()->wait();
    });
  }
  void on_each_rank(const std::function<void(c10d::Backend&)>& body) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < static_cast<int>(GetParam().size()); ++rank) {
      ranks.emplace_back([&, rank] {
        BackendRequest request{.store = store,
                               .rank = rank,
                               .size = static_cast<int>(GetParam().size()),
                               .group_name = "test",
                               .world_ranks = {},
                               .host_ids = GetParam(),
                               .interface_addr = "127.0.0.1",
                               .ranks_on_cores = static_cast<int>(GetParam().size()),
                               .all_reduce = all_reduce_,
                               .timeout_s = 20};
        for (int i = 0; i < request.size; ++i) request.world_ranks.push_back(i);
        const auto backend = make_hierarchical_backend(request);
        body(*backend);
      });
    }
    for (auto& rank : ranks) rank.join();
  }

  std::string all_reduce_ = "auto";
};

INSTANTIATE_TEST_SUITE_P(Hosts, Hierarchical,
                         testing::Values(Hosts{"a", "a", "b", "b"}, Hosts{"a", "b", "a", "b"},
                                         Hosts{"a", "a", "b"}, Hosts{"a", "b", "b"}, Hosts{"a", "b"},
                                         Hosts{"a", "b", "a"}, Hosts{"a", "a", "b", "b", "c", "c"},
                                         Hosts{"a", "b", "b", "c", "a", "b"}, Hosts{"a", "a", "a"}));

constexpr at::ScalarType kReducible[] = {at::kFloat, at::kDouble, at::kBFloat16,
                                         at::kHalf,  at::kInt,    at::kLong};

/// A part for each rank: small integers, whose sums are exact in any order and dtype.
at::Tensor parts_for_all(int rank, int size, std::int64_t numel, at::ScalarType dtype = at::kFloat) {
  return at::arange(size * numel, at::kLong).add(rank * 3).remainder(7).add(1).to(dtype);
}

at::Tensor part_of(const at::Tensor& whole, int rank, int size) {
  const std::int64_t numel = whole.numel() / size;
  return whole.narrow(0, rank * numel, numel);
}

at::Tensor reduced(const c10d::ReduceOp& op, int size, std::int64_t numel,
                   at::ScalarType dtype = at::kFloat) {
  at::Tensor result = parts_for_all(0, size, numel, dtype);
  for (int rank = 1; rank < size; ++rank) {
    const at::Tensor next = parts_for_all(rank, size, numel, dtype);
    if (op == c10d::ReduceOp::MIN) result = result.minimum(next);
    if (op == c10d::ReduceOp::MAX) result = result.maximum(next);
    if (op == c10d::ReduceOp::PRODUCT) result = result.mul(next);
    if (op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG) result = result.add(next);
  }
  return op == c10d::ReduceOp::AVG ? result.div(size) : result;
}

c10::intrusive_ptr<c10d::Work> reduce_scatter(c10d::Backend& backend, at::Tensor& output, at::Tensor& input,
                                              const c10d::ReduceOp& op = c10d::ReduceOp::SUM) {
  c10d::ReduceScatterOptions options;
  options.reduceOp = op;
  return backend._reduce_scatter_base(output, input, options);
}

TEST_P(Hierarchical, ReduceScatterGivesPartsAndKeepsInput) {
  run([](c10d::Backend& backend) {
    const int me = backend.getRank(), size = backend.getSize();
    const auto check = [&](const c10d::ReduceOp& op, std::int64_t numel, at::ScalarType dtype) {
      at::Tensor input = parts_for_all(me, size, numel, dtype), output = at::zeros({numel}, dtype);
      reduce_scatter(backend, output, input, op)->wait();
      EXPECT_TRUE(output.equal(part_of(reduced(op, size, numel, dtype), me, size))) << numel << " " << dtype;
      EXPECT_TRUE(input.equal(parts_for_all(me, size, numel, dtype)));
    };
    for (const std::int64_t numel : {0, 1, 100, 20001}) check(c10d::ReduceOp::SUM, numel, at::kFloat);
    for (const at::ScalarType dtype : kReducible) check(c10d::ReduceOp::SUM, 1000, dtype);
    for (const auto op :
         {c10d::ReduceOp::AVG, c10d::ReduceOp::MIN, c10d::ReduceOp::MAX, c10d::ReduceOp::PRODUCT})
      check(op, 10, at::kFloat);
  });
}

/// So a resumed run has the same bits, whatever was measured at the creation of its group.
TEST_P(Hierarchical, SumsOfShardsFollowOrderOfHosts) {
  const HostLayout layout = layout_of(GetParam(), 0);
  run([&](c10d::Backend& backend) {
    const int me = backend.getRank(), size = backend.getSize();
    const auto input_of = [&](int rank) {
      return at::arange(size * 1000, at::kFloat).mul(0.37f * static_cast<float>(rank + 1)).sin();
    };
    at::Tensor input = input_of(me), output = at::zeros({1000});
    reduce_scatter(backend, output, input)->wait();
    at::Tensor expected;
    for (const std::vector<int>& ranks : layout.ranks_of_host) {
      at::Tensor of_host;
      for (const int rank : ranks) of_host = of_host.defined() ? of_host.add(input_of(rank)) : input_of(rank);
      expected = expected.defined() ? expected.add(of_host) : of_host;
    }
    EXPECT_TRUE(output.equal(part_of(expected, me, size)));
  });
}

TEST_P(Hierarchical, PartsMayBeInsideWholeTensor) {
  run([](c10d::Backend& backend) {
    const int me = backend.getRank(), size = backend.getSize();
    for (const std::int64_t numel : {1, 100, 20001}) {
      at::Tensor whole = parts_for_all(me, size, numel, at::kFloat),
                 part = whole.narrow(0, me * numel, numel);
      reduce_scatter(backend, part, whole)->wait();
      const at::Tensor all = reduced(c10d::ReduceOp::SUM, size, numel, at::kFloat);
      EXPECT_TRUE(part.equal(part_of(all, me, size))) << numel;
      backend._allgather_base(whole, part)->wait();
      EXPECT_TRUE(whole.equal(all)) << numel;
    }
  });
}

TEST_P(Hierarchical, AllGatherKeepsTheOrderOfRanks) {
  run([](c10d::Backend& backend) {
    const int me = backend.getRank(), size = backend.getSize();
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kByte, at::kBool}) {
      for (const std::int64_t numel : {0, 1, 100, 20001}) {
        const at::Tensor expected = parts_for_all(0, size, numel, dtype);
        at::Tensor input = part_of(expected, me, size).clone(), output = at::zeros({size * numel}, dtype);
        backend._allgather_base(output, input)->wait();
        EXPECT_TRUE(output.equal(expected)) << numel << " " << dtype;
      }
    }
  });
}

TEST_P(Hierarchical, PendingShardsAreAwaitedInAnyOrder) {
  constexpr std::int64_t kNumel = 5000;
  constexpr std::size_t kRounds = 4;
  run([](c10d::Backend& backend) {
    const int me = backend.getRank(), size = backend.getSize();
    std::vector<at::Tensor> inputs, parts, wholes;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (std::size_t i = 0; i < kRounds; ++i) {
      inputs.push_back(parts_for_all(me, size, kNumel));
      parts.push_back(at::zeros({kNumel}));
      wholes.push_back(at::zeros({size * kNumel}));
      works.push_back(reduce_scatter(backend, parts[i], inputs[i]));
      works.push_back(backend._allgather_base(wholes[i], parts[i]));  // of data that is still being reduced
    }
    for (auto work = works.rbegin(); work != works.rend(); ++work) (*work)->wait();
    for (const at::Tensor& whole : wholes)
      EXPECT_TRUE(whole.equal(reduced(c10d::ReduceOp::SUM, size, kNumel)));
  });
}

TEST_P(Hierarchical, AbortEndsIncompleteShardOperations) {
  std::promise<void> all_gave_up;
  std::atomic<int> num_waiting = static_cast<int>(GetParam().size()) - 1;
  on_each_rank([&](c10d::Backend& backend) {
    const int size = backend.getSize();
    if (backend.getRank() == size - 1) {
      ASSERT_EQ(all_gave_up.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
      backend.abort();
      return;
    }
    at::Tensor input = parts_for_all(0, size, 5000), part = at::zeros({5000}),
               whole = at::zeros({size * 5000});
    auto scattered = reduce_scatter(backend, part, input);
    auto gathered = backend._allgather_base(whole, part);
    backend.abort();
    EXPECT_ANY_THROW(scattered->wait());
    EXPECT_ANY_THROW(gathered->wait());
    if (--num_waiting == 0) all_gave_up.set_value();
  });
}

TEST_P(Hierarchical, RejectsShardReductionOfBytesAndContinues) {
  run([](c10d::Backend& backend) {
    const int me = backend.getRank(), size = backend.getSize();
    at::Tensor bytes = at::zeros({size}, at::kByte), byte = at::zeros({1}, at::kByte);
    if (me == 0) {
      EXPECT_THROW(reduce_scatter(backend, byte, bytes), InvalidArgument);
    }
    at::Tensor input = parts_for_all(me, size, 10), output = at::zeros({10});
    reduce_scatter(backend, output, input)->wait();
    EXPECT_TRUE(output.equal(part_of(reduced(c10d::ReduceOp::SUM, size, 10), me, size)));
  });
}

TEST_P(Hierarchical, AllReduceSumsOverHosts) {
  run([](c10d::Backend& backend) {
    const int size = backend.getSize();
    for (const std::int64_t numel : {1, 100, 4096, 10001}) {
      std::vector<at::Tensor> tensors{at::arange(numel, at::kFloat).remainder(97).add(backend.getRank())};
      backend.allreduce(tensors)->wait();
      const auto expected = at::arange(numel, at::kFloat).remainder(97).mul(size).add(size * (size - 1) / 2);
      EXPECT_TRUE(tensors[0].equal(expected)) << numel;
    }
  });
}

TEST_P(Hierarchical, EveryWaySupportsEveryTypeAndReduction) {
  for (const std::string& way : all_reduce_names()) {
    all_reduce_ = way;
    run([&](c10d::Backend& backend) {
      const int me = backend.getRank(), size = backend.getSize();
      const auto check = [&](const c10d::ReduceOp& op, std::int64_t numel, at::ScalarType dtype) {
        std::vector<at::Tensor> tensors{parts_for_all(me, size, numel, dtype)};
        c10d::AllreduceOptions options;
        options.reduceOp = op;
        backend.allreduce(tensors, options)->wait();
        EXPECT_TRUE(tensors[0].equal(reduced(op, size, numel, dtype))) << way << " " << numel << " " << dtype;
      };
      for (const std::int64_t numel : {0, 1, 3, 5001}) check(c10d::ReduceOp::SUM, numel, at::kFloat);
      for (const at::ScalarType dtype : kReducible) check(c10d::ReduceOp::SUM, 100, dtype);
      for (const auto op :
           {c10d::ReduceOp::AVG, c10d::ReduceOp::MIN, c10d::ReduceOp::MAX, c10d::ReduceOp::PRODUCT})
        check(op, 10, at::kFloat);
    });
  }
}

TEST_P(Hierarchical, AbortEndsIncompleteAllReduce) {
  for (const std::string way : {"gloo", "ring", "direct"}) {
    all_reduce_ = way;
    std::promise<void> all_gave_up;
    std::atomic<int> num_waiting = static_cast<int>(GetParam().size()) - 1;
    on_each_rank([&](c10d::Backend& backend) {
      if (backend.getRank() == backend.getSize() - 1) {
        ASSERT_EQ(all_gave_up.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
        backend.abort();
        return;
      }
      std::vector<at::Tensor> tensors{at::zeros({5000})};
      auto reduces = backend.allreduce(tensors);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that it is in flight
      backend.abort();
      EXPECT_ANY_THROW(reduces->wait());
      EXPECT_ANY_THROW(backend.allreduce(tensors)->wait());
      if (--num_waiting == 0) all_gave_up.set_value();
    });
  }
}

TEST_P(Hierarchical, BroadcastReachesEveryHostFromEveryRoot) {
  run([](c10d::Backend& backend) {
    for (int root = 0; root < backend.getSize(); ++root) {
      std::vector<at::Tensor> tensors{at::full({10}, backend.getRank() + 1.0)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      backend.broadcast(tensors, options)->wait();
      EXPECT_TRUE(tensors[0].equal(at::full({10}, root + 1.0))) << root;
    }
  });
}

TEST_P(Hierarchical, MessagesPassInsideAndBetweenHosts) {
  run([](c10d::Backend& backend) {
    const int size = backend.getSize();
    const int me = backend.getRank();
    std::vector<at::Tensor> received{at::zeros({10})};
    std::vector<at::Tensor> sent{at::full({10}, me + 1.0)};
    auto recv = backend.recv(received, (me + size - 1) % size, 0);
    auto send = backend.send(sent, (me + 1) % size, 0);
    recv->wait();
    send->wait();
    EXPECT_TRUE(received[0].equal(at::full({10}, (me + size - 1) % size + 1.0)));
  });
}

TEST(HostLayout, CounterpartsHaveSamePlaceOnEachHost) {
  const auto layout = layout_of({"a", "b", "a", "b"}, 3);
  EXPECT_EQ(layout.host, 1);
  EXPECT_EQ(layout.place, 1);
  EXPECT_TRUE(layout.even);
  EXPECT_EQ(layout.members, (std::vector<int>{1, 3}));
  EXPECT_EQ(layout.counterparts, (std::vector<int>{2, 3}));
}

TEST(HostLayout, AnUnevenHostHasRanksWithoutCounterparts) {
  const auto layout = layout_of({"a", "a", "b"}, 1);
  EXPECT_FALSE(layout.even);
  EXPECT_TRUE(layout.counterparts.empty());
  EXPECT_EQ(layout_of({"a", "a", "b"}, 2).counterparts, (std::vector<int>{0, 2}));
}

}  // namespace
}  // namespace trireme::comm
