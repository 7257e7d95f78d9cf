// Access over loopback TCP without a configured secret.

#include <sys/socket.h>

#include <filesystem>

#include "tests/support/other_user.h"
#include "tests/unit/wire/channel_party.h"
#include "trireme/base/error.h"
#include "trireme/wire/internal/handshake.h"
#include "trireme/wire/socket.h"
#include "trireme/wire/store_client.h"
#include "trireme/wire/store_server.h"
#include "trireme/wire/user_key.h"

namespace trireme::wire {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

NodeLoopOptions local_part(const PeerIdentity& self, const std::vector<Address>& listen = {}) {
  NodeLoopOptions options;
  options.listen = listen;
  options.self = self;
  return options;
}
const PeerIdentity kLocalServer = {.role = "server", .name = "7"},
                   kLocalWorker = {.role = "worker", .name = "3"};

NodeLoopOptions local_server() { return local_part(kLocalServer, {"tcp:127.0.0.1:0"}); }

/// The result of a connection to the address.
std::string met(const Address& address) {
  Party client(local_part(kLocalWorker));
  return client.meet(address) != 0 ? "welcome" : client.next_closing().reason;
}

Socket connected_to(const Address& address) {
  return *try_connect(Endpoint::parse(address.substr(4), "the address"), Deadline::after_s(kPartyWait_s));
}

std::string read_some(const Socket& socket, std::size_t count) {
  std::string bytes(count, '\0');
  receive_all(socket, std::as_writable_bytes(std::span(bytes)), Deadline::after_s(kPartyWait_s));
  return bytes;
}

/// The connecting end's part of a handshake, byte by byte. Returns the sent hello.
std::string shake_hands(const Socket& socket, Handshake& handshake) {
  std::string hello;
  while (handshake.state() == Handshake::State::kUnderWay) {
    handshake.take(read_some(socket, handshake.wanted()));
    const std::string out = handshake.take_output();
    send_all(socket, std::as_bytes(std::span(out)), Deadline::after_s(kPartyWait_s));
    hello += out;
  }
  return hello;
}

HandshakeOptions local_worker(const Socket& socket, Secret key) {
  return {.security = Security::Kind::kLocal,
          .secret = std::move(key),
          .self = kLocalWorker,
          .listening_address = "tcp:" + socket.peer().text(),
          .connecting_address = "tcp:" + socket.local().text()};
}

TEST(SecurityLocalChannels, ProcessesOfUserConnectWithoutSecret) {
  Party server(local_server());
  EXPECT_EQ(met(server.address()), "welcome");
}

TEST(SecurityLocalChannels, AnotherUserIsRejectedAndNamed) {
  SKIP_UNLESS_ROOT();
  Party server(local_server());
  EXPECT_THAT(test::as_user(test::kOtherUser, [&] { return met(server.address()); }),
              HasSubstr("does not know the key of this user"));
  EXPECT_TRUE(server.comes_to_count("refused: wrong secret", 1));
  EXPECT_THAT(server.lines(), Contains(AllOf(HasSubstr("tcp:127.0.0.1:"), HasSubstr("'worker 3'"))));
  EXPECT_TRUE(server.peers().empty());
  EXPECT_EQ(met(server.address()), "welcome");
}

TEST(SecurityLocalChannels, RejectsServerWithoutKey) {
  Party client(local_part(kLocalWorker));
  const Socket listening = listen_at({"127.0.0.1", 0});
  std::thread impostor([&] {
    Socket socket;
    for (const auto deadline = Deadline::after_s(kPartyWait_s); socket.fd() < 0 && !deadline.expired();)
      socket = Socket(::accept4(listening.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    HandshakeOptions options = local_worker(socket, Secret::random());
    options.listening = true;
    Handshake handshake(options);
    const std::string challenge = handshake.take_output();
    send_all(socket, std::as_bytes(std::span(challenge)), Deadline::after_s(kPartyWait_s));
    while (handshake.state() == Handshake::State::kUnderWay)
      handshake.take(read_some(socket, handshake.wanted()));
    // It accepts any proof.
    const std::string yes =
        std::string("TRWH\3\3\x23\0\1\0", 10) + std::string(32, 'x') + std::string(1, '\0');
    send_all(socket, std::as_bytes(std::span(yes)), Deadline::after_s(kPartyWait_s));
  });
  EXPECT_EQ(client.meet("tcp:" + listening.local().text()), 0u);
  EXPECT_THAT(client.next_closing().reason, HasSubstr("cannot prove that it knows the key of this user"));
  impostor.join();
}

TEST(SecurityLocalChannels, RejectsPeersWithoutProof) {
  Party server(local_server());
  for (const bool guesses : {false, true}) {
    const Socket socket = connected_to(server.address());
    Handshake handshake(local_worker(socket, guesses ? Secret::random() : Secret()));
    shake_hands(socket, handshake);
    EXPECT_EQ(handshake.refusal(), "refused by peer");
    EXPECT_THAT(handshake.reason(), HasSubstr("does not know the key of this user"));
  }
  EXPECT_TRUE(server.peers().empty());
}

TEST(SecurityLocalChannels, ARecordedHandshakeIsRejected) {
  Party server(local_server());
  const Socket first = connected_to(server.address());
  Handshake handshake(local_worker(first, user_key()));
  const std::string hello = shake_hands(first, handshake);
  ASSERT_EQ(handshake.state(), Handshake::State::kDone) << handshake.reason();
  ASSERT_TRUE(server.wait_for_peers(1));
  const Socket again = connected_to(server.address());
  send_all(again, std::as_bytes(std::span(hello)), Deadline::after_s(kPartyWait_s));
  EXPECT_TRUE(server.comes_to_count("refused: wrong secret", 1));
  EXPECT_EQ(server.peers().size(), 1u);
}

TEST(SecurityLocalChannels, RecreatedKeyIsKnown) {
  const test::TemporaryFolder state;
  ::setenv("XDG_STATE_HOME", state.path().c_str(), 1);
  Party server(local_server());
  EXPECT_EQ(met(server.address()), "welcome");
  const std::string before = user_key().reveal();
  fs::remove(state / "trireme/user.key");
  EXPECT_EQ(met(server.address()), "welcome");
  EXPECT_NE(user_key().reveal(), before);
}

TEST(SecurityLocalChannels, MismatchedEndsSayWhichSecretTheyExpect) {
  Party without(local_server());
  auto options = local_part(kLocalWorker);
  options.security = Security::none();
  Party open(std::move(options));
  EXPECT_EQ(open.meet(without.address()), 0u);
  EXPECT_THAT(open.next_closing().reason, HasSubstr("it expects the key of this user, this end no proof"));
}

TEST(SecurityLocalStores, RejectsAnotherUserWithoutSecret) {
  SKIP_UNLESS_ROOT();
  std::mutex mutex;
  std::string complaints;
  StoreServer server(listen_at({"127.0.0.1", 0}), {.complain = [&](const std::string& line) {
                       const std::lock_guard lock(mutex);
                       complaints += line;
                     }});
  StoreClient own({.endpoint = server.endpoint()});
  own.set("key", "value", 10);
  const std::string said = test::as_user(test::kOtherUser, [&] {
    StoreClient client({.endpoint = server.endpoint()});
    return client.get("key", 10).value_or("nothing");
  });
  EXPECT_THAT(said, HasSubstr("rejects this process"));
  EXPECT_EQ(own.get("key", 10), "value");
  const std::lock_guard lock(mutex);
  EXPECT_THAT(complaints, HasSubstr("another secret"));
}

}  // namespace
}  // namespace trireme::wire
