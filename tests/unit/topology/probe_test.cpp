// Probes between ranks that are threads, over loopback.

#include "trireme/topology/probe.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/topology/internal/match.h"
#include "trireme/wire/store_server.h"

namespace trireme::topology {
namespace {

const wire::Secret kSecret = wire::Secret::from_text("the secret of this probe", "a test");

/// The results of each rank of a probe.
struct Ended {
  std::optional<LinkTable> table;
  std::string error;
};

class TopologyProbe : public testing::Test {
 protected:
  TopologyProbe() : server_(wire::listen_at({"127.0.0.1", 0}), {.secret = kSecret}) {}

  Meeting meeting(wire::StoreClient& store, int rank, int size, double timeout_s) {
    return {store,
            {.rank = rank, .size = size, .prefix = text("probe ", num_probes_), .timeout_s = timeout_s}};
  }

  /// Runs `body` on a thread for each rank. Each rank has its own store client.
  void on_ranks(const std::vector<int>& ranks, const std::function<void(int, wire::StoreClient&)>& body) {
    ++num_probes_;
    std::vector<std::thread> threads;
    for (const int rank : ranks) {
      threads.emplace_back([&, rank] {
        wire::StoreClient store({.endpoint = server_.endpoint(), .secret = kSecret, .timeout_s = 20});
        body(rank, store);
      });
    }
    for (auto& thread : threads) thread.join();
  }

  std::vector<Ended> probe(int size, const std::vector<int>& ranks, double timeout_s,
                           const std::function<wire::Secret(int)>& secret_of) {
    std::vector<Ended> ended(static_cast<std::size_t>(size));
    on_ranks(ranks, [&](int rank, wire::StoreClient& store) {
      Ended& mine = ended[static_cast<std::size_t>(rank)];
      try {
        Meeting meets = meeting(store, rank, size, 3 * timeout_s);
        mine.table = probe_links(meets, {.address = "127.0.0.1",
                                         .secret = secret_of(rank),
                                         .host_id = text("host ", rank / 2),
                                         .timeout_s = timeout_s,
                                         .patience_s = 0.001});
      } catch (const CommError& error) {
        mine.error = error.what();
      }
    });
    return ended;
  }

  wire::StoreServer server_;
  int num_probes_ = 0;
};

TEST_F(TopologyProbe, GivesEveryRankSameTable) {
  for (const int size : {1, 2, 5}) {
    std::vector<int> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
    const auto ended = probe(size, ranks, 20, [](int) { return kSecret; });
    for (const Ended& each : ended) {
      ASSERT_TRUE(each.table) << each.error;
      ASSERT_EQ(each.table->num_ranks(), size);
      EXPECT_EQ(each.table->num_hosts(), (size + 1) / 2);
      for (int a = 0; a < size; ++a) {
        for (int b = 0; b < size; ++b) {
          if (a == b) continue;
          const Link& link = each.table->link(a, b);
          EXPECT_GT(link.alpha_s, 0);
          EXPECT_GT(link.bytes_per_s, 0);
          EXPECT_EQ(link.alpha_s, ended[0].table->link(a, b).alpha_s) << "another table on another rank";
          EXPECT_EQ(link.bytes_per_s, ended[0].table->link(a, b).bytes_per_s);
        }
      }
    }
  }
}

TEST_F(TopologyProbe, NamesPairWithoutCommonSecret) {
  const auto ended = probe(3, {0, 1, 2}, 0.5, [](int rank) {
    return rank == 2 ? wire::Secret::from_text("what somebody else knows", "a test") : kSecret;
  });
  for (const Ended& each : ended) {
    EXPECT_FALSE(each.table);
    EXPECT_NE(each.error.find("the link between rank 0 and rank 2 failed"), std::string::npos) << each.error;
  }
}

TEST_F(TopologyProbe, NamesTheRankThatDoesNotArrive) {
  const auto ended = probe(3, {0, 2}, 0.2, [](int) { return kSecret; });
  for (const int rank : {0, 2}) {
    const std::string& error = ended[static_cast<std::size_t>(rank)].error;
    EXPECT_NE(error.find("rank 1 of 3 did not arrive within"), std::string::npos) << error;
  }
}

TEST_F(TopologyProbe, ContinuesAfterOneThatHasFailed) {
  probe(2, {0}, 0.1, [](int) { return kSecret; });
  for (const Ended& each : probe(2, {0, 1}, 20, [](int) { return kSecret; }))
    EXPECT_TRUE(each.table) << each.error;
}

TEST_F(TopologyProbe, ProblemOfOneEndsRoundOfAll) {
  std::atomic<int> told = 0;
  on_ranks({0, 1, 2}, [&](int rank, wire::StoreClient& store) {
    Meeting meets = meeting(store, rank, 3, 20);
    meets.end_round("", "end the first round");
    try {
      meets.end_round(rank == 1 ? "its cable is cut" : "", "end the second round");
    } catch (const CommError& error) {
      if (std::string(error.what()) == "its cable is cut") ++told;
    }
  });
  EXPECT_EQ(told, 3);
}

TEST_F(TopologyProbe, RejectsOtherHostsWithoutASecret) {
  wire::StoreClient store({.endpoint = server_.endpoint(), .secret = kSecret, .timeout_s = 20});
  Meeting meets = meeting(store, 0, 1, 20);
  EXPECT_THROW(probe_links(meets, {.address = "0.0.0.0", .secret = {}, .host_id = "here"}), InvalidArgument);
}

/// The two ends of one match, with their connection.
class TopologyMatch : public testing::Test {
 protected:
  wire::Socket listening_ = wire::listen_at({"127.0.0.1", 0});
  const MatchTerms terms_{.from = 3, .to = 5, .round = 1};
};

TEST_F(TopologyMatch, RejectsStrangersAndAcceptsExpectedPeer) {
  std::thread others([&] {
    auto silent = wire::try_connect(listening_.local(), Deadline::after_s(20));
    EXPECT_TRUE(silent);
    silent.reset();
    const MatchTerms of_another_round{.from = 3, .to = 5, .round = 2};
    EXPECT_THROW(connect_match(listening_.local(), kSecret, of_another_round, Deadline::after_s(20)),
                 CommError);
    const auto socket = connect_match(listening_.local(), kSecret, terms_, Deadline::after_s(20));
    const auto [there, back] = drive_match(socket, 0.001, Deadline::after_s(20));
    EXPECT_GT(there.bytes_per_s, 0);
    EXPECT_EQ(there.alpha_s, back.alpha_s);
  });
  const auto socket = accept_match(listening_, kSecret, terms_, Deadline::after_s(20));
  answer_match(socket, Deadline::after_s(20));
  others.join();
}

TEST_F(TopologyMatch, WaitsNoLongerThanItsDeadline) {
  EXPECT_THROW(accept_match(listening_, kSecret, terms_, Deadline::after_s(0.05)), CommError);
  // The port is open, but no process answers.
  EXPECT_THROW(connect_match(listening_.local(), kSecret, terms_, Deadline::after_s(0.05)), CommError);
}

TEST_F(TopologyMatch, SaysThatNobodyListens) {
  const wire::Endpoint gone = wire::listen_at({"127.0.0.1", 0}).local();
  try {
    connect_match(gone, kSecret, terms_, Deadline::after_s(20));
    FAIL() << "connected to nobody";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("no connection to 127.0.0.1:"), std::string::npos)
        << error.what();
  }
}

TEST_F(TopologyMatch, DisconnectedPartnerEndsTheMatch) {
  std::thread other(
      [&] { const auto socket = connect_match(listening_.local(), kSecret, terms_, Deadline::after_s(20)); });
  const auto socket = accept_match(listening_, kSecret, terms_, Deadline::after_s(20));
  EXPECT_THROW(answer_match(socket, Deadline::after_s(20)), CommError);
  other.join();
}

}  // namespace
}  // namespace trireme::topology
