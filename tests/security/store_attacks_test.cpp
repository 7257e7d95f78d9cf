// Attacks without the job's secret on the store: between a rank and the store, or at its port.

#include <gmock/gmock.h>
#include <sys/socket.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "tests/security/middleman.h"
#include "tests/support/resource_limit.h"
#include "trireme/base/error.h"
#include "trireme/wire/internal/store_protocol.h"
#include "trireme/wire/store_client.h"
#include "trireme/wire/store_server.h"

namespace trireme::wire {
namespace {

using test::Middleman;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

constexpr double kWait_s = 30;  // ends a test that would hang

class StoreAttack : public testing::Test {
 protected:
  const Secret secret_ = Secret::from_text("the secret of this job", "the test");
  double patience_s_ = kWait_s, complaints_every_s_ = 60;

  StoreServer& server() {
    if (!server_) {
      server_.emplace(listen_at({"127.0.0.1", 0}),
                      StoreServerOptions{.secret = secret_,
                                         .complain =
                                             [this](const std::string& what) {
                                               const std::lock_guard lock(mutex_);
                                               complaints_ += what + "\n";
                                               changed_.notify_all();
                                             },
                                         .patience_s = patience_s_,
                                         .complaints_every_s = complaints_every_s_});
    }
    return *server_;
  }
  StoreClient client(const Endpoint& endpoint) { return StoreClient({endpoint, secret_, kWait_s}); }
  StoreClient client() { return client(server().endpoint()); }
  /// All complaints so far, once one of them contains `about`.
  std::string complaints(const std::string& about) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, Seconds(kWait_s), [&] { return complaints_.find(about) != std::string::npos; });
    return complaints_;
  }

  Socket stranger() { return *try_connect(server().endpoint(), Deadline::after_s(kWait_s)); }
  static void send(const Socket& socket, const std::string& bytes) {
    send_all(socket, std::as_bytes(std::span(bytes)), Deadline::after_s(kWait_s));
  }
  static std::string receive(const Socket& socket, std::size_t bytes) {
    std::string result(bytes, '\0');
    receive_all(socket, std::as_writable_bytes(std::span(result)), Deadline::after_s(kWait_s));
    return result;
  }
  /// Reads until the connection ends. Returns the rest of the bytes.
  static std::string rest(const Socket& socket) {
    std::string result;
    try {
      while (true) result += receive(socket, 1);
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), Not(HasSubstr("does not answer")));
    }
    return result;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string complaints_;
  std::optional<StoreServer> server_;
};

std::string set_request(const std::string& key, const std::string& value) {
  return store::encode(store::Request{.action = store::Action::kSet, .keys = {key}, .value = value});
}

TEST_F(StoreAttack, RelayOfHandshakeSetsNoKey) {
  Middleman relay(server().endpoint());
  StoreClient rank = client(relay.endpoint());
  rank.set("key", "the rank's", kWait_s);
  for (const std::size_t room_for_a_proof : {0, 32})
    relay.say_to_server(set_request("key", "the relay's") + std::string(room_for_a_proof, 'x'));
  EXPECT_THAT(complaints("inserted"), HasSubstr("something on the way has changed, repeated or inserted it"));
  EXPECT_EQ(client().get("key", kWait_s), "the rank's");
  EXPECT_THROW(rank.get("key", kWait_s), CommError);
}

TEST_F(StoreAttack, RelayOfHandshakeReadsNoChosenKey) {
  client().set("hidden", "what no rank has asked for", kWait_s);
  Middleman relay(server().endpoint());
  const StoreClient rank = client(relay.endpoint());
  const std::string asked = store::encode(store::Request{.action = store::Action::kGet, .keys = {"hidden"}});
  for (const std::size_t room_for_a_proof : {0, 32})
    relay.say_to_server(asked + std::string(room_for_a_proof, 'x'));
  EXPECT_THAT(complaints("inserted"), HasSubstr("127.0.0.1:"));
  EXPECT_THAT(relay.said_by_server(), Not(HasSubstr("what no rank has asked for")));
}

TEST_F(StoreAttack, RepeatedRequestIsNotDoneAgain) {
  Middleman relay(server().endpoint());
  StoreClient rank = client(relay.endpoint());
  const std::size_t before = relay.said_by_client().size();
  rank.add("sum", 1, kWait_s);
  relay.say_to_server(relay.said_by_client().substr(before));
  EXPECT_THAT(complaints("repeated"), HasSubstr("repeated"));
  EXPECT_EQ(client().get("sum", kWait_s), "1");
}

TEST_F(StoreAttack, RequestChangedInTransitIsNotDone) {
  Middleman relay(server().endpoint());
  StoreClient rank = client(relay.endpoint());
  relay.change_to_server([](std::string bytes) { return bytes.replace(bytes.find("mine"), 4, "ours"); });
  EXPECT_THROW(rank.set("key", "mine", kWait_s), CommError);
  EXPECT_EQ(client().get("key", kWait_s), std::nullopt);
}

TEST_F(StoreAttack, RejectsChangedAndInventedReplies) {
  client().set("key", "mine", kWait_s);
  const auto changed = [](std::string bytes) { return bytes.replace(bytes.find("mine"), 4, "ours"); };
  const auto invented = [](const std::string&) {
    return store::encode(store::Reply{.value = "ours"}) + std::string(32, 'x');
  };
  for (const Middleman::Change& change : {Middleman::Change(changed), Middleman::Change(invented)}) {
    Middleman relay(server().endpoint());
    StoreClient rank = client(relay.endpoint());
    relay.change_to_client(change);
    EXPECT_THAT([&] { rank.get("key", kWait_s); },
                ThrowsMessage<CommError>(AllOf(HasSubstr(relay.endpoint().text()), HasSubstr("on the way"))));
  }
}

TEST_F(StoreAttack, OldReplyIsNotTakenForNew) {
  StoreClient other = client();
  other.set("key", "old", kWait_s);
  Middleman relay(server().endpoint());
  StoreClient rank = client(relay.endpoint());
  const std::size_t before = relay.said_by_server().size();
  EXPECT_EQ(rank.get("key", kWait_s), "old");
  const std::string old = relay.said_by_server().substr(before);
  other.set("key", "new", kWait_s);
  relay.change_to_client([old](const std::string&) { return old; });
  EXPECT_THROW(rank.get("key", kWait_s), CommError);
}

TEST_F(StoreAttack, RecordedConnectionIsUselessInAnother) {
  std::string recorded;
  {
    Middleman relay(server().endpoint());
    client(relay.endpoint()).add("sum", 1, kWait_s);
    recorded = relay.said_by_client();
  }
  const Socket replaying = stranger();
  send(replaying, recorded);
  EXPECT_THAT(complaints("another secret"), HasSubstr(replaying.local().text()));
  EXPECT_EQ(client().get("sum", kWait_s), "1");
}

TEST_F(StoreAttack, ServerProofIsNoClientProof) {
  // The attacker sends a server proof with the same secret, over a nonce that it may choose.
  const Socket reflecting = stranger();
  const auto of_server = *store::decode_hello(receive(reflecting, store::kHelloBytes));
  const Nonce own = random_nonce();
  send(reflecting, store::encode_answer({own, store::proof(secret_, store::Side::kServer, of_server, own)}));
  EXPECT_EQ(rest(reflecting), store::encode_verdict(nullptr));
}

TEST_F(StoreAttack, RejectsOlderProtocolAndRequestsWithoutProof) {
  const auto greet = [&](const std::string& greeting) {
    const Socket socket = stranger();
    const auto of_server = *store::decode_hello(receive(socket, store::kHelloBytes));
    const Nonce own = random_nonce();
    const auto proof = store::proof(secret_, store::Side::kClient, of_server, own);
    std::string answer = store::encode_answer({own, proof});
    send(socket, answer.replace(0, greeting.size(), greeting));
    return rest(socket);
  };
  EXPECT_EQ(greet("TRIREME1"), "");
  EXPECT_THAT(complaints("does not speak"), HasSubstr("as a rank of this version"));

  const Socket socket = stranger();
  const auto of_server = *store::decode_hello(receive(socket, store::kHelloBytes));
  const Nonce own = random_nonce();
  send(socket, store::encode_answer({own, store::proof(secret_, store::Side::kClient, of_server, own)}));
  receive(socket, store::kVerdictBytes);
  send(socket, set_request("key", "without a proof") + set_request("key", "without a proof"));
  EXPECT_EQ(rest(socket), "");
  EXPECT_EQ(client().get("key", kWait_s), std::nullopt);
}

TEST_F(StoreAttack, RejectsServerOfOlderProtocol) {
  Middleman relay(server().endpoint());
  relay.change_to_client([](std::string bytes) { return bytes.replace(0, 8, "TRIREME1"); });
  EXPECT_THAT([&] { client(relay.endpoint()); },
              ThrowsMessage<CommError>(HasSubstr("no store of this version")));
}

TEST_F(StoreAttack, FloodOfSilentStrangersBlocksNoClient) {
  const test::ResourceLimit files(RLIMIT_NOFILE, RLIM_INFINITY);
  const int num_strangers = files.most() > 8000 ? 2000 : 200;
  StoreClient before = client();
  std::vector<Socket> strangers;
  for (int i = 0; i < num_strangers; ++i) strangers.push_back(stranger());
  StoreClient after = client();
  after.set("key", "value", kWait_s);
  EXPECT_EQ(before.get("key", kWait_s), "value");
  EXPECT_EQ(server().num_clients(), 2);
}

TEST_F(StoreAttack, WrongProofsAreCountedInLog) {
  complaints_every_s_ = 0.2;
  const auto reject_one = [&] {
    const Socket socket = stranger();
    send(socket, store::encode_answer({}));
    rest(socket);
    return socket.local().text();
  };
  for (int i = 0; i < 50; ++i) reject_one();
  EXPECT_THAT(complaints("more connection"),
              AllOf(HasSubstr("the store at 127.0.0.1:"),
                    HasSubstr("rejected in the last 200 ms, last from 127.0.0.1:")));
  // A rejection after all those is reported, too.
  bool told = false;
  for (int i = 0; i < 1000 && !told; ++i) {
    const std::string last = reject_one();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    told = complaints("").find(last) != std::string::npos;
  }
  EXPECT_TRUE(told);
}

TEST_F(StoreAttack, HalfOpenConnectionsEndByThemselves) {
  patience_s_ = 0.3;
  std::vector<Socket> half_open;
  for (const std::size_t bytes : {0, 1, 8, 40, 71}) {
    half_open.push_back(stranger());
    send(half_open.back(), store::encode_answer({}).substr(0, bytes));
  }
  half_open.push_back(stranger());
  ::shutdown(half_open.back().fd(), SHUT_WR);
  StoreClient rank = client();
  for (const Socket& each : half_open) EXPECT_EQ(rest(each).size(), store::kHelloBytes);
  rank.set("key", "value", kWait_s);
  EXPECT_EQ(client().get("key", kWait_s), "value");
}

}  // namespace
}  // namespace trireme::wire
