// The rendezvous of ranks with the store of their world and with each other, as threads with sockets between
// them.

#include "trireme/comm/internal/rendezvous.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tests/support/ports.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/comm/internal/wire_store.h"

namespace trireme::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr double kLong_s = 60;
constexpr double kShort_s = 0.5;

LaunchEnvironment rank_of_two(int rank, int port) {
  LaunchEnvironment environment;
  environment.launcher = "env";
  environment.rank = environment.local_rank = rank;
  environment.world_size = environment.local_world_size = 2;
  environment.one_host = true;
  environment.master_port = port;
  return environment;
}

/// Both ranks join, add their numbers and leave.
void expect_a_world(const std::function<LaunchEnvironment(int rank)>& environment) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto context =
          Context::join(environment(rank), {.backend = "gloo", .timeout_s = kLong_s, .torch_threads = 1});
      auto tensor = at::full({4}, rank + 1.0);
      context->world().all_reduce(tensor);
      EXPECT_EQ(tensor.sum().item<double>(), 12.0);
    });
  }
  for (auto& rank : ranks) rank.join();
}

TEST(Rendezvous, RankZeroServesLocalWorldOnLoopback) {
  const int port = test::free_port();
  expect_a_world([&](int rank) {
    auto environment = rank_of_two(rank, port);
    environment.master_addr = "192.0.2.1";  // an address of no host
    return environment;
  });
}

TEST(Rendezvous, LauncherServesUnderItsSecret) {
  const auto secret = wire::Secret::random();
  wire::StoreServer launcher(wire::listen_at({"127.0.0.1", 0}), {.secret = secret});
  expect_a_world([&](int rank) {
    auto environment = rank_of_two(rank, launcher.endpoint().port);
    environment.store_host = StoreHost::kLauncher;
    environment.secret = secret;
    return environment;
  });
  EXPECT_TRUE(launcher.wait_until_left(kLong_s));
}

/// Options of a store like that of torchrun's agent.
c10d::TCPStoreOptions as_agent() {
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.port = 0;
  options.waitWorkers = false;
  return options;
}

TEST(Rendezvous, TorchrunAgentLeadsToRankZero) {
  c10d::TCPStore agent("127.0.0.1", as_agent());
  expect_a_world([&](int rank) {
    auto environment = rank_of_two(rank, agent.getPort());
    environment.store_host = StoreHost::kRankZeroAtPort;
    return environment;
  });
}

/// Joins three consecutive worlds, then two concurrent ones. A rank that arrives early waits for the other.
void expect_worlds(const std::function<LaunchEnvironment(int rank)>& environment) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto join = [&] {
        return Context::join(environment(rank),
                             {.backend = "gloo", .timeout_s = kLong_s, .torch_threads = 1});
      };
      const auto sum = [&](Context& context) {
        auto tensor = at::full({4}, rank + 1.0);
        context.world().all_reduce(tensor);
        EXPECT_EQ(tensor.sum().item<double>(), 12.0);
      };
      for (int i = 0; i < 3; ++i) {
        sum(*join());
        if (rank == i % 2) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      }
      auto first = join();
      const auto second = join();
      sum(*second);
      sum(*first);
      first.reset();
      sum(*second);
    });
  }
  for (auto& rank : ranks) rank.join();
}

TEST(Rendezvous, RanksJoinConsecutiveAndConcurrentWorlds) {
  const int port = test::free_port();
  expect_worlds([&](int rank) { return rank_of_two(rank, port); });
  wire::StoreServer launcher(wire::listen_at({"127.0.0.1", 0}), {});
  expect_worlds([&](int rank) {
    auto environment = rank_of_two(rank, launcher.endpoint().port);
    environment.store_host = StoreHost::kLauncher;
    return environment;
  });
  c10d::TCPStore agent("127.0.0.1", as_agent());
  expect_worlds([&](int rank) {
    auto environment = rank_of_two(rank, agent.getPort());
    environment.store_host = StoreHost::kRankZeroAtPort;
    return environment;
  });
}

TEST(Rendezvous, LateRankFailsAllOfWorld) {
  const int port = test::free_port();
  const auto join = [&](int rank, double timeout_s) {
    return Context::join(rank_of_two(rank, port),
                         {.backend = "gloo", .timeout_s = timeout_s, .torch_threads = 1});
  };
  const auto says_who_is_missing =
      ThrowsMessage<CommError>(HasSubstr("rank 1 of 2 did not arrive within 500 ms"));
  EXPECT_THAT([&] { join(0, kShort_s); }, says_who_is_missing);
  EXPECT_THAT([&] { join(1, kLong_s); }, says_who_is_missing) << "though rank 0 has come";
  std::thread other([&] { join(1, kLong_s); });
  join(0, kLong_s);
  other.join();
}

TEST(Rendezvous, NamesAnotherProcessOfSameRank) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto environment = rank_of_two(1, 0);
  EXPECT_EQ(claim_place(*store, environment, Arrival{}), "");
  EXPECT_EQ(claim_place(*store, environment, Arrival{}), "/world-1");
  Arrival other;
  other.process = "another";
  EXPECT_THAT([&] { claim_place(*store, environment, other); },
              ThrowsMessage<CommError>(HasSubstr("two processes say that they are rank 1 of 2")));
}

TEST(Rendezvous, DoesNotAwaitFrozenAgent) {
  // The kernel accepts connections for it, but it never answers.
  const wire::Socket deaf = wire::listen_at({"127.0.0.1", 0});
  for (const int rank : {0, 1}) {
    auto environment = rank_of_two(rank, deaf.local().port);
    environment.store_host = StoreHost::kRankZeroAtPort;
    EXPECT_THAT([&] { open_world_store(environment, Log(), kShort_s); },
                ThrowsMessage<CommError>(AllOf(HasSubstr(text("rank ", rank, " of 2")),
                                               HasSubstr("the store of torchrun's agent"))));
  }
}

TEST(Rendezvous, BelievesTheAgentNothingButAPort) {
  c10d::TCPStore agent("127.0.0.1", as_agent());
  auto environment = rank_of_two(1, agent.getPort());
  environment.store_host = StoreHost::kRankZeroAtPort;
  static_cast<c10d::Store&>(agent).set("trireme/store/0", std::string("192.0.2.1:7"));
  EXPECT_EQ(open_world_store(environment, Log(), kLong_s).endpoint.text(), "127.0.0.1:7");
  static_cast<c10d::Store&>(agent).set("trireme/store/0", std::string("nonsense"));
  EXPECT_THROW(open_world_store(environment, Log(), kLong_s), CommError);
}

TEST(Rendezvous, IsNotServedRemotelyWithoutSecret) {
  for (const int rank : {0, 1}) {
    auto environment = rank_of_two(rank, test::free_port());
    environment.one_host = false;
    environment.master_addr = "0.0.0.0";
    EXPECT_THAT([&] { Context::join(environment, {.timeout_s = kShort_s}); },
                ThrowsMessage<InvalidArgument>(HasSubstr("TRIREME_SECRET")));
  }
}

TEST(Rendezvous, ErrorNamesTheMissingStoreHost) {
  auto environment = rank_of_two(1, test::free_port());
  EXPECT_THAT([&] { Context::join(environment, {.timeout_s = kShort_s}); },
              ThrowsMessage<CommError>(
                  AllOf(HasSubstr("rank 1 of 2 could not join the rendezvous: no process serves"),
                        HasSubstr("rank 0 did not start"))));
  environment.store_host = StoreHost::kLauncher;
  EXPECT_THAT([&] { Context::join(environment, {.timeout_s = kShort_s}); },
              ThrowsMessage<CommError>(HasSubstr("--node-rank 0")));
}

TEST(WireStore, IsAStoreAsBackendsKnowOne) {
  wire::StoreServer server(wire::listen_at({"127.0.0.1", 0}), {});
  const auto store = c10::make_intrusive<WireStore>(wire::StoreClientOptions{server.endpoint(), {}, kLong_s});
  store->set("key", std::string("value"));
  EXPECT_EQ(store->clone()->get_to_str("key"), "value");
  EXPECT_EQ(store->add("sum", 2) + store->add("sum", 3), 7);
  EXPECT_TRUE(store->check({"key", "sum"}));
  EXPECT_EQ(store->compareSet("key", "value", "other"), "other");
  EXPECT_EQ(store->multiGet({"key", "sum"}).at(1), store->get("sum"));
  EXPECT_EQ(store->getNumKeys(), 2);
  EXPECT_TRUE(store->deleteKey("key"));
  store->setTimeout(std::chrono::milliseconds(100));
  EXPECT_THAT([&] { store->get("key"); }, ThrowsMessage<CommError>(HasSubstr("no rank has put key")));
  EXPECT_THAT([&] { store->wait({"sum", "none"}); }, ThrowsMessage<CommError>(HasSubstr("sum, none")));
}

}  // namespace
}  // namespace trireme::comm
