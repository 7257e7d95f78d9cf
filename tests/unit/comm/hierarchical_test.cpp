// Several hosts, played by giving the ranks of one process different host ids.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "trireme/comm/internal/backend_table.h"
#include "trireme/comm/internal/host_layout.h"

namespace trireme::comm {
namespace {

using Hosts = std::vector<std::string>;

class Hierarchical : public testing::TestWithParam<Hosts> {
 protected:
  void run(const std::function<void(c10d::Backend&)>& body) {
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
                               .timeout_s = 20};
        for (int i = 0; i < request.size; ++i) request.world_ranks.push_back(i);
        const auto backend = make_hierarchical_backend(request);
        body(*backend);
        backend->barrier()->wait();
      });
    }
    for (auto& rank : ranks) rank.join();
  }
};

INSTANTIATE_TEST_SUITE_P(Hosts, Hierarchical,
                         testing::Values(Hosts{"a", "a", "b", "b"}, Hosts{"a", "b", "a", "b"},
                                         Hosts{"a", "a", "b"}, Hosts{"a", "b", "b"}, Hosts{"a", "b"}));

TEST_P(Hierarchical, AllReduceSumsOverAllHostsForEverySize) {
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

TEST(HostLayout, CounterpartsStandAtTheSamePlaceOfEachHost) {
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
