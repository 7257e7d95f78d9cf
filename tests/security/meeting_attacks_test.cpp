// Attacks without the job's secret on the connections for all-reduces between hosts.

#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <functional>
#include <future>
#include <optional>
#include <utility>

#include "tests/security/middleman.h"
#include "tests/security/own_internet.h"
#include "trireme/base/error.h"
#include "trireme/topology/exchange.h"
#include "trireme/topology/internal/introduction.h"

namespace trireme::topology {
namespace {

using test::Middleman;
using testing::AllOf;
using testing::HasSubstr;
using wire::Endpoint;
using wire::Secret;
using wire::Socket;

constexpr double kStart_s = 30;

class MeetingAttack : public testing::Test {
 protected:
  const Secret secret_ = Secret::from_text("the secret of this job", "the test");
  std::string host_ = "127.0.0.1";
  double timeout_s_ = kStart_s;
  std::optional<Socket> listening_[2];

  Endpoint endpoint(int rank) {
    auto& mine = listening_[rank];
    if (!mine) mine = wire::listen_at({host_, 0});
    return mine->local();
  }

  Socket stranger() { return *wire::try_connect(endpoint(0), Deadline::after_s(kStart_s)); }
  static void send(const Socket& socket, const std::string& bytes) {
    wire::send_all(socket, std::as_bytes(std::span(bytes)), Deadline::after_s(kStart_s));
  }

  /// Two ranks connect and reduce. Rank 1 connects to rank 0 at `place`. Returns the result of each rank: the
  /// sum, or an error.
  std::vector<std::string> meet(const Endpoint& place) {
    const Endpoint of_1 = endpoint(1);
    const auto run = [&](int rank) -> std::string {
      try {
        const Membership membership{.rank = rank,
                                    .endpoints = {rank == 0 ? endpoint(0) : place, of_1},
                                    .names = {"rank 0", "rank 1"},
                                    .secret = secret_,
                                    .purpose = "a test"};
        Exchange exchange(*listening_[rank], membership, Deadline::after_s(timeout_s_));
        std::vector<float> data{1.5f, 2.5f};
        exchange.all_reduce({.data = std::as_writable_bytes(std::span(data))}, Deadline::after_s(kStart_s));
        return text(data[0], " ", data[1]);
      } catch (const Error& error) {
        return error.what();
      }
    };
    auto other = std::async(std::launch::async, run, 1);
    const std::string mine = run(0);
    return {mine, other.get()};
  }
  std::vector<std::string> meet() { return meet(endpoint(0)); }
};

const std::vector<std::string> kMet{"3 5", "3 5"};

TEST_F(MeetingAttack, SixtyFourSilentStrangersHoldUpNobody) {
  std::vector<Socket> silent;
  for (int i = 0; i < 64; ++i) silent.push_back(stranger());
  EXPECT_EQ(meet(), kMet);
}

TEST_F(MeetingAttack, ExcessStrangersDelayNoRank) {
  std::vector<Socket> silent;
  for (int i = 0; i < 400; ++i) silent.push_back(stranger());
  EXPECT_EQ(meet(), kMet);
}

TEST_F(MeetingAttack, StrangersOfHostDisplaceNoOther) {
  host_ = "0.0.0.0";
  // The first connection comes from another host than the many others.
  const Socket slow = wire::bind_to({"127.0.0.9", 0});
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  there.sin_port = htons(static_cast<std::uint16_t>(endpoint(0).port));
  ::connect(slow.fd(), reinterpret_cast<const sockaddr*>(&there), sizeof there);
  std::vector<Socket> many;
  for (int i = 0; i < 300; ++i)
    many.push_back(*wire::try_connect({"127.0.0.1", endpoint(0).port}, Deadline::after_s(kStart_s)));
  Reception reception(*listening_[0], secret_, {.to = 0, .purpose = "a test"});
  EXPECT_THAT(
      [&] { reception.next([](int) { return true; }, Deadline::after_s(2)); },
      testing::ThrowsMessage<CommError>(AllOf(HasSubstr("45 that came were not expected"),
                                              HasSubstr(text("the first one from ", slow.local().text())))));
}

TEST_F(MeetingAttack, HalfIntroductionsAndGarbageHoldUpNobody) {
  std::vector<Socket> strangers;
  for (int i = 0; i < 80; ++i) {
    strangers.push_back(stranger());
    const std::size_t size = i % 2 == 0 ? sizeof(Introduction) - 1 : 4 * sizeof(Introduction);
    send(strangers.back(), std::string(size, static_cast<char>(i)));
    if (i % 5 == 0) ::shutdown(strangers.back().fd(), SHUT_WR);
    if (i % 7 == 0) strangers.pop_back();
  }
  EXPECT_EQ(meet(), kMet);
}

TEST_F(MeetingAttack, ErrorOfWaitingRankNamesStrangers) {
  timeout_s_ = 0.5;
  const Socket silent = stranger(), other = stranger();
  send(other, std::string(sizeof(Introduction), 'x'));
  const Endpoint nobody = wire::listen_at({"127.0.0.1", 0}).local();
  EXPECT_THAT(meet(nobody)[0],
              AllOf(HasSubstr("waits for connections of rank 1: no connection came"),
                    HasSubstr(text("proved nothing, the last one from ", other.local().text())),
                    HasSubstr(text("not enough, the first one from ", silent.local().text()))));
}

TEST_F(MeetingAttack, ARecordedIntroductionIsOfNoUse) {
  // A rank connects to an endpoint that is not rank 0's and introduces itself there.
  const Socket elsewhere = wire::listen_at({"127.0.0.1", 0});
  const Terms terms{.from = 1, .to = 0, .purpose = "a test"};
  auto rank = std::async(std::launch::async, [&] {
    connect_introduced(elsewhere.local(), secret_, terms, Deadline::after_s(kStart_s));
  });
  std::optional<Introduction> recorded;
  {
    Socket coming;
    while (coming.fd() < 0) coming = Socket(::accept4(elsewhere.fd(), nullptr, nullptr, SOCK_NONBLOCK));
    send_value(coming, wire::random_nonce(), Deadline::after_s(kStart_s));
    recorded = receive_value<Introduction>(coming, Deadline::after_s(kStart_s));
  }
  EXPECT_THROW(rank.get(), CommError);
  const Socket replaying = stranger();
  send_value(replaying, *recorded, Deadline::after_s(kStart_s));
  EXPECT_EQ(meet(), kMet);
  receive_value<wire::Nonce>(replaying, Deadline::after_s(kStart_s));
  EXPECT_THROW(receive_value<wire::Digest>(replaying, Deadline::after_s(kStart_s)), CommError);
}

TEST_F(MeetingAttack, RelayOfIntroductionHasNoConnection) {
  timeout_s_ = 1;
  Middleman relay(endpoint(0));
  const auto ended = meet(relay.endpoint());
  EXPECT_THAT(ended[0], HasSubstr("waits for connections of rank 1"));
  EXPECT_THAT(ended[1], AllOf(HasSubstr("cannot connect to rank 0"), HasSubstr("at another address")));
  // The introduction has reached rank 0, which has answered with its nonce and without a proof.
  EXPECT_EQ(relay.said_by_client().size(), sizeof(Introduction));
  EXPECT_EQ(relay.said_by_server().size(), sizeof(wire::Nonce));
}

TEST_F(MeetingAttack, RelayAtAnotherAddressHasNoConnection) {
  timeout_s_ = 1;
  Middleman relay(endpoint(0), Endpoint{"127.0.0.2", endpoint(0).port});
  const auto ended = meet(relay.endpoint());
  EXPECT_THAT(ended[1], HasSubstr("at another address"));
}

TEST_F(MeetingAttack, RelayThatAddsBytesHasNoConnection) {
  timeout_s_ = 1;
  Middleman relay(endpoint(0));
  // Adds a tensor right after the introduction, before the answer to it.
  relay.change_to_server([](const std::string& bytes) { return bytes + std::string(64, 'x'); });
  const auto ended = meet(relay.endpoint());
  EXPECT_THAT(ended[0], HasSubstr("waits for connections of rank 1: no connection came"));
  EXPECT_THAT(ended[1], HasSubstr("cannot connect to rank 0"));
}

/// An attacker on the path between two hosts. Each of two networks has a listener at the same public address
/// and port: rank 0 in one, and `Middleman` in the other one, where rank 1 is.
class MeetingAttackOnThePath : public MeetingAttack {
 protected:
  void go(const std::function<void(Middleman& between)>& body) {
    const test::OwnInternet outside(""), inside("");
    host_ = test::kPublicAddress;
    std::optional<Socket> connected;
    const auto connect = [&] { connected = stranger(); };
    const bool is_there = outside.run(connect) && inside.run([&] {
      Middleman between(std::move(*connected), endpoint(0));
      body(between);
    });
    if (!is_there) GTEST_SKIP() << "this user makes no namespaces";
  }

  /// Changes every byte of the connection after the first `num_bytes`.
  static Middleman::Change change_after(std::size_t num_bytes) {
    return [num_bytes, passed = std::size_t{0}](std::string bytes) mutable {
      for (char& byte : bytes)
        if (passed++ >= num_bytes) byte = static_cast<char>(byte ^ 1);
      return bytes;
    };
  }
};

TEST_F(MeetingAttackOnThePath, RouterMayChangeAddressOfSender) {
  go([&](Middleman&) { EXPECT_EQ(meet(), kMet); });
}

TEST_F(MeetingAttackOnThePath, ChangesNoIntroduction) {
  timeout_s_ = 1;
  go([&](Middleman& between) {
    between.change_to_server(change_after(sizeof(Introduction) - sizeof(wire::Digest)));
    EXPECT_THAT(meet()[0], HasSubstr("waits for connections of rank 1: no connection came"));
  });
}

TEST_F(MeetingAttackOnThePath, ChangesNoAnswerToAnIntroduction) {
  timeout_s_ = 1;
  go([&](Middleman& between) {
    between.change_to_client(change_after(sizeof(wire::Nonce)));
    EXPECT_THAT(meet()[1], HasSubstr("does not know the job's secret"));
  });
}

// The limit of the proof, as in docs/security.md ("Data between hosts"). A tunnel prevents this attack.
TEST_F(MeetingAttackOnThePath, RelayWithBothAddressesChangesTensor) {
  go([&](Middleman& between) {
    // Changes the numbers of rank 1.
    between.change_to_server([](std::string bytes) {
      for (const float number : {1.5f, 2.5f}) {
        const std::string in_bytes(reinterpret_cast<const char*>(&number), sizeof number);
        const std::size_t at = bytes.find(in_bytes);
        if (at != std::string::npos) bytes[at + 2] = 1;
      }
      return bytes;
    });
    const auto ended = meet();
    EXPECT_NE(ended, kMet);
    for (const std::string& each : ended)
      EXPECT_THAT(each, testing::MatchesRegex("[0-9.]+ [0-9.]+")) << "sums, and no error";
  });
}

/// Addresses to listen at and to connect to.
class MeetingPlace : public MeetingAttack,
                     public testing::WithParamInterface<std::pair<const char*, const char*>> {};

TEST_P(MeetingPlace, IsFoundByEveryAddressOfIt) {
  host_ = GetParam().first;
  try {
    endpoint(0);
  } catch (const CommError& error) {
    GTEST_SKIP() << "this host has no " << host_ << ": " << error.what();
  }
  EXPECT_EQ(meet({GetParam().second, endpoint(0).port}), kMet);
}

INSTANTIATE_TEST_SUITE_P(Addresses, MeetingPlace,
                         testing::Values(std::pair{"127.0.0.1", "127.0.0.1"},
                                         std::pair{"0.0.0.0", "127.0.0.1"}, std::pair{"0.0.0.0", "127.0.0.2"},
                                         std::pair{"0.0.0.0", "0.0.0.0"}, std::pair{"127.0.0.1", "localhost"},
                                         std::pair{"::1", "::1"}, std::pair{"::", "::1"},
                                         std::pair{"::", "127.0.0.1"},
                                         std::pair{"127.0.0.1", "::ffff:127.0.0.1"},
                                         std::pair{"::ffff:127.0.0.1", "127.0.0.1"}),
                         [](const auto& test) { return text("Number", test.index); });

TEST_F(MeetingAttack, RejectsPeerWithoutSecret) {
  const Terms terms{.from = 1, .to = 0, .purpose = "a test"};
  auto without = std::async(std::launch::async, [&, place = endpoint(0)] {
    connect_introduced(place, Secret(), terms, Deadline::after_s(kStart_s));
  });
  EXPECT_EQ(meet(), kMet);
  EXPECT_THROW(without.get(), CommError);
}

}  // namespace
}  // namespace trireme::topology
