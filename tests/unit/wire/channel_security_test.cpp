// Accepted and rejected peers, the messages to rejected ones, and attacks on a loop that serves others.

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "tests/support/certificates.h"
#include "tests/unit/wire/channel_party.h"
#include "trireme/base/error.h"
#include "trireme/wire/internal/channel_address.h"
#include "trireme/wire/internal/handshake.h"
#include "trireme/wire/socket.h"

namespace trireme::wire {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

Secret secret_of(char letter) { return Secret::from_text(std::string(32, letter), "the test"); }

NodeLoopOptions serving(Security security = {}, const Address& address = "tcp:127.0.0.1:0") {
  NodeLoopOptions options;
  options.listen = {address};
  options.security = std::move(security);
  options.self = {.role = "server", .name = "7"};
  return options;
}

NodeLoopOptions joining(Security security = {}) {
  NodeLoopOptions options;
  options.security = std::move(security);
  options.self = {.role = "worker", .name = "3"};
  return options;
}

Endpoint endpoint_of(const Address& address) { return Endpoint::parse(address.substr(4), "the address"); }

Socket stranger(const Address& address) {
  return *try_connect(endpoint_of(address), Deadline::after_s(kPartyWait_s));
}

void say(const Socket& socket, std::string_view bytes) {
  send_all(socket, std::as_bytes(std::span(bytes)), Deadline::after_s(kPartyWait_s));
}

/// Reads until the other side closes the connection.
std::string all_of(const Socket& socket) {
  std::string result;
  std::byte byte;
  try {
    while (true) {
      receive_all(socket, {&byte, 1}, Deadline::after_s(kPartyWait_s));
      result += static_cast<char>(byte);
    }
  } catch (const CommError&) {
    return result;
  }
}

/// Checks that the loop serves others as before.
void expect_lives(Party& server, Security security = {}) {
  Party client(joining(std::move(security)));
  const ConnectionId to = client.meet(server.address());
  ASSERT_NE(to, 0u);
  const std::size_t before = server.num_messages();
  client.send(to, {.body = body_of(100)});
  EXPECT_TRUE(server.wait_for_messages(before + 1));
}

TEST(ChannelSecurity, EndsWithSecretLearnEachOther) {
  const auto security = Security::with_secret(secret_of('a'));
  Party server(serving(security)), client(joining(security));
  const ConnectionId to = client.meet(server.address());
  ASSERT_NE(to, 0u);
  EXPECT_EQ(client.peers().at(to).role, "server");
  EXPECT_EQ(client.peers().at(to).name, "7");
  ASSERT_TRUE(server.wait_for_peers(1));
  EXPECT_EQ(server.peers().begin()->second.role, "worker");
}

TEST(ChannelSecurity, AnotherSecretIsRejectedAndNeverShown) {
  Party server(serving(Security::with_secret(secret_of('a'))));
  Party client(joining(Security::with_secret(secret_of('b'))));
  EXPECT_EQ(client.meet(server.address()), 0u);
  const Closing closing = client.next_closing();
  EXPECT_EQ(closing.cause, CloseCause::kRefused);
  EXPECT_THAT(closing.reason, HasSubstr("another secret"));
  EXPECT_THAT(closing.reason, AllOf(Not(HasSubstr("aaaa")), Not(HasSubstr("bbbb"))));
  // The answer is sent before the server counts it. The count is complete when its loop serves the next peer.
  expect_lives(server, Security::with_secret(secret_of('a')));
  EXPECT_EQ(server.counted("refused: wrong secret"), 1u);
  EXPECT_THAT(server.lines(), testing::Contains(HasSubstr("another secret")));
  for (const auto& line : server.lines()) EXPECT_THAT(line, Not(HasSubstr("aaaa")));
}

TEST(ChannelSecurity, StrangersAreNamedThenCounted) {
  Party server(serving(Security::with_secret(secret_of('a'))));
  for (int i = 0; i < 50; ++i) {
    const Socket socket = stranger(server.address());
    say(socket, "GET / HTTP/1.1\r\n\r\n");
    all_of(socket);
  }
  expect_lives(server, Security::with_secret(secret_of('a')));
  server.stop();
  const auto lines = server.lines();
  ASSERT_EQ(lines.size(), 11u);
  EXPECT_THAT(lines[9], HasSubstr("closed the channel of tcp:127.0.0.1:"));
  EXPECT_THAT(lines[10], HasSubstr("40 more connections were rejected, last from tcp:127.0.0.1:"));
}

TEST(ChannelSecurity, EndsThatProveDifferentlySaySo) {
  Party server(serving(Security::with_secret(secret_of('a')))), client(joining());
  EXPECT_EQ(client.meet(server.address()), 0u);
  EXPECT_THAT(client.next_closing().reason, HasSubstr("it expects a secret, this end the key of this user"));
}

TEST(ChannelSecurity, PublicAddressNeedsProof) {
  EXPECT_THAT([] { NodeLoop loop(serving({}, "tcp:0.0.0.0:0")); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("0.0.0.0"), HasSubstr("give a secret"))));
  NodeLoop trusted(serving(Security::none(), "tcp:0.0.0.0:0"));
  NodeLoop proved(serving(Security::with_secret(secret_of('a')), "tcp:0.0.0.0:0"));
  Party client(joining());
  EXPECT_EQ(client.meet("tcp:192.0.2.1:9"), 0u);
  const Closing closing = client.next_closing();
  EXPECT_EQ(closing.cause, CloseCause::kRefused);
  EXPECT_THAT(closing.reason, HasSubstr("give a secret"));
}

TEST(ChannelSecurity, KeyOfRoleProvesThatRoleOnly) {
  const Secret whole = secret_of('a'), key = whole.of_role("worker.5");
  for (const bool encrypted : {false, true}) {
    Party server(serving(Security::with_secret(whole, encrypted)));
    Party client(joining(Security::with_secret(key, encrypted)));  // states that it is worker 3
    ASSERT_NE(client.meet(server.address()), 0u);
    ASSERT_TRUE(server.wait_for_peers(1));
    EXPECT_EQ(server.peers().begin()->second.role, "worker");
    EXPECT_EQ(server.peers().begin()->second.name, "5");
    // Used as a whole secret, the key gives no access, whatever the peer states.
    const Secret forged = Secret::from_text("x" + key.reveal(), "the test");
    for (const std::string name : {"5", "3"}) {
      auto options = joining(Security::with_secret(forged, encrypted));
      options.self.name = name;
      Party liar(std::move(options));
      EXPECT_EQ(liar.meet(server.address()), 0u);
      EXPECT_EQ(liar.next_closing().cause, CloseCause::kRefused);
    }
  }
  EXPECT_THAT([&] { NodeLoop loop(serving(Security::with_secret(key))); },
              ThrowsMessage<InvalidArgument>(HasSubstr("the key of worker.5 alone cannot listen")));
}

TEST(ChannelSecurity, ASecretHasToBeGiven) {
  EXPECT_THAT([] { NodeLoop loop(serving(Security::with_secret({}))); },
              ThrowsMessage<InvalidArgument>(HasSubstr("none is given")));
}

TEST(ChannelSecurity, JunkIsRejectedAndCounted) {
  Party server(serving());
  for (const std::string& junk :
       {std::string(8, '\0'), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(5000, 'x'),
        std::string("TRWH\3\2\xff\xff"), std::string("TRWH\2\3\1\0x", 9)}) {
    const Socket socket = stranger(server.address());
    say(socket, junk);
    all_of(socket);
  }
  EXPECT_EQ(server.counted("refused: no handshake") + server.counted("refused: handshake too long"), 5u);
  EXPECT_EQ(server.counted("refused: handshake too long"), 1u);
  EXPECT_EQ(server.peers().size(), 0u);
  expect_lives(server);
}

TEST(ChannelSecurity, SlowOrFloodingPeersBlockNoOthers) {
  auto options = serving(Security::with_secret(secret_of('a')));
  options.handshake_s = 1;
  options.max_strangers = 20;
  Party server(std::move(options));
  std::vector<Socket> crowd;
  for (int i = 0; i < 100; ++i) {
    crowd.push_back(stranger(server.address()));
    say(crowd.back(), "TRW");
  }
  expect_lives(server, Security::with_secret(secret_of('a')));
  EXPECT_GE(server.counted("refused: too many strangers"), 70u);
  for (const Socket& each : crowd) all_of(each);  // returns only after all have been closed
  EXPECT_GE(server.counted("refused: handshake too slow"), 1u);
}

TEST(ChannelSecurity, ARecordedHandshakeIsOfNoUse) {
  const auto options = [](bool listening, char letter) {
    return HandshakeOptions{.listening = listening,
                            .security = Security::Kind::kSecret,
                            .secret = secret_of(letter),
                            .self = {.role = "worker", .name = "1"},
                            .listening_address = "tcp:10.0.0.1:1",
                            .connecting_address = "tcp:10.0.0.2:2"};
  };
  Handshake server(options(true, 'a')), client(options(false, 'a'));
  client.take(server.take_output());
  const std::string hello = client.take_output();
  server.take(hello);
  client.take(server.take_output());
  ASSERT_EQ(client.state(), Handshake::State::kDone);
  ASSERT_EQ(server.state(), Handshake::State::kDone);

  Handshake second(options(true, 'a'));
  second.take_output();
  second.take(hello);
  EXPECT_EQ(second.refusal(), "wrong secret");

  // Relayed by an attacker with other addresses.
  auto moved = options(true, 'a');
  moved.listening_address = "tcp:10.0.0.3:1";
  Handshake far(moved), near(options(false, 'a'));
  near.take(far.take_output());
  far.take(near.take_output());
  EXPECT_EQ(far.refusal(), "wrong secret");

  // A server without the secret can accept no peer, and cannot send the proof back.
  Handshake impostor(options(true, 'b')), careful(options(false, 'a'));
  careful.take(impostor.take_output());
  std::string reflected = careful.take_output();
  const std::string proof = reflected.substr(reflected.size() - 32);
  std::string welcome = std::string("TRWH\3\3\x23\0\1\0", 10) + proof + std::string(1, '\0');
  careful.take(welcome);
  EXPECT_EQ(careful.refusal(), "wrong secret");
}

TEST(ChannelSecurity, RandomHandshakesNeverEndWell) {
  std::mt19937_64 random(3);
  HandshakeOptions options{.security = Security::Kind::kSecret, .secret = secret_of('a')};
  for (int round = 0; round < 20000; ++round) {
    Handshake good_server([&] {
      auto o = options;
      o.listening = true;
      return o;
    }());
    Handshake good_client(options);
    std::string challenge = good_server.take_output();
    const bool first = random() % 2 == 0;
    if (first) challenge[random() % challenge.size()] ^= static_cast<char>(1 << random() % 8);
    good_client.take(challenge.substr(0, good_client.wanted()));
    if (good_client.wanted() > 0 && challenge.size() > 8)
      good_client.take(challenge.substr(8, good_client.wanted()));
    std::string hello = good_client.take_output();
    if (hello.empty()) continue;
    if (!first) hello[random() % hello.size()] ^= static_cast<char>(1 << random() % 8);
    good_server.take(hello);
    EXPECT_NE(good_server.state(), Handshake::State::kDone);
  }
}

TEST(ChannelSecurity, ASocketsFolderIsItsUsersAlone) {
  const test::TemporaryFolder folder;
  const std::string inside = (folder / "open").string();
  ASSERT_EQ(::mkdir(inside.c_str(), 0755), 0);
  ::chmod(inside.c_str(), 0755);
  EXPECT_THAT([&] { NodeLoop loop(serving({}, "unix:" + inside + "/socket")); },
              ThrowsMessage<InvalidArgument>(HasSubstr("chmod 700")));
  NodeLoop made(serving({}, "unix:" + (folder / "made/socket").string()));
  struct stat found {};
  ASSERT_EQ(::stat((folder / "made").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
}

TEST(ChannelSecurity, AbandonedSocketIsReplacedLiveOneKept) {
  const test::TemporaryFolder folder;
  const Address address = "unix:" + (folder / "s/socket").string();
  const std::string path = address.substr(5);
  std::filesystem::create_directory(folder / "s");
  ::chmod((folder / "s").c_str(), 0700);
  {  // as left by a killed process
    const Socket dead(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un at{.sun_family = AF_UNIX, .sun_path = {}};
    std::strncpy(at.sun_path, path.c_str(), sizeof at.sun_path - 1);
    ASSERT_EQ(::bind(dead.fd(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  }
  Party server(serving({}, address));
  EXPECT_THAT([&] { NodeLoop second(serving({}, address)); },
              ThrowsMessage<CommError>(HasSubstr("another program listens there")));
  expect_lives(server);
}

/// Checks that another process, which the kernel identifies to the server, is rejected without a reason.
void expect_told_nothing(const Address& address, uid_t user) {
  const SocketAddress found = resolve(ChannelAddress::parse(address)).front();
  Party server(serving({}, address));
  const pid_t child = ::fork();
  if (child == 0) {
    if (user != ::geteuid() && ::setresuid(user, user, user) != 0) ::_exit(2);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    char byte = 0;
    const bool connected = ::connect(fd, found.get(), found.length) == 0;
    ::_exit(connected && ::read(fd, &byte, 1) == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(server.counted("refused: other user"), 1u);
  expect_lives(server);
}

TEST(ChannelSecurity, KernelIdentifiesPeerOfUnixSocket) {
  expect_told_nothing("inproc:" + text(::getpid(), "-vouched"), ::geteuid());
}

/// A socket name that is no file has no folder with access rights.
TEST(ChannelSecurity, RejectsAnotherUserOverUnixSocket) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  expect_told_nothing("unix:@trireme-" + text(::getpid(), "-other-user"), 65534);
}

TEST(ChannelTls, MessagesArriveUnderSecretAndIdentifyPeers) {
  const auto security = Security::with_secret(secret_of('a'), true);
  Party server(serving(security), [](Network& network, ConnectionId from, Message message) {
    network.send(from, std::move(message));
  });
  Party client(joining(security));
  const ConnectionId to = client.meet(server.address());
  ASSERT_NE(to, 0u);
  EXPECT_EQ(client.peers().at(to).role, "server");
  ASSERT_TRUE(server.wait_for_peers(1));
  EXPECT_EQ(server.peers().begin()->second.name, "3");
  for (const std::size_t size : {0UL, 1UL, 100'000UL, 5'000'000UL}) {
    const Buffer body = body_of(size);
    client.send(to, {.head = head_of("head"), .body = body});
    EXPECT_TRUE(same_bytes(client.next_message().body, body));
  }
}

TEST(ChannelTls, SecretRejectsStrangersAndPlainEnds) {
  const auto security = Security::with_secret(secret_of('a'), true);
  Party server(serving(security));
  Party other(joining(Security::with_secret(secret_of('b'), true)));
  EXPECT_EQ(other.meet(server.address()), 0u);
  const Closing closing = other.next_closing();
  EXPECT_EQ(closing.cause, CloseCause::kRefused);
  EXPECT_THAT(closing.reason, HasSubstr("both ends need the same secret and encryption"));
  EXPECT_TRUE(server.comes_to_count("refused: tls", 1));
  const test::TemporaryFolder folder;
  test::Authority authority("ours", folder.path());
  Party certified(joining(Security::with_tls(authority.issue("w", "DNS:worker.3"))));
  EXPECT_EQ(certified.meet(server.address()), 0u);
  Party server_with_certificate(serving(Security::with_tls(authority.issue("s", "DNS:server.7"))));
  Party client(joining(security));
  EXPECT_EQ(client.meet(server_with_certificate.address()), 0u);
  auto options = joining(Security::with_secret(secret_of('a')));
  options.handshake_s = 0.5;  // both wait for the first message of the other one
  Party plain(std::move(options));
  EXPECT_EQ(plain.meet(server.address()), 0u);
  Party plain_server(serving(Security::with_secret(secret_of('a')))), encrypting(joining(security));
  EXPECT_EQ(encrypting.meet(plain_server.address()), 0u);
  EXPECT_EQ(encrypting.next_closing().cause, CloseCause::kRefused);
  expect_lives(server, security);
}

TEST(ChannelTls, EndsLearnRoleFromCertificate) {
  const test::TemporaryFolder folder;
  test::Authority authority("ours", folder.path());
  Party server(
      serving(Security::with_tls(authority.issue("s", "DNS:server.7"))),
      [](Network& network, ConnectionId from, Message message) { network.send(from, std::move(message)); });
  auto options = joining(Security::with_tls(authority.issue("w", "DNS:worker.3")));
  options.self = {.role = "coordinator", .name = "a claim that nobody believes"};
  Party client(std::move(options));
  const ConnectionId to = client.meet(server.address());
  ASSERT_NE(to, 0u);
  EXPECT_EQ(client.peers().at(to).role, "server");
  ASSERT_TRUE(server.wait_for_peers(1));
  EXPECT_EQ(server.peers().begin()->second.role, "worker");
  EXPECT_EQ(server.peers().begin()->second.name, "3");
  const Buffer body = body_of(5'000'000);
  client.send(to, {.head = head_of("head"), .body = body});
  EXPECT_TRUE(same_bytes(client.next_message().body, body));
}

TEST(ChannelTls, CertificatesOfOthersAreRejected) {
  const test::TemporaryFolder folder;
  test::Authority ours("ours", folder.path()), theirs("theirs", folder.path());
  const TlsFiles good = ours.issue("s", "DNS:server.7");
  Party server(serving(Security::with_tls(good)));
  TlsFiles stranger_files = theirs.issue("w", "DNS:worker.3");
  stranger_files.authority = good.authority;  // the peer accepts us; we reject the peer
  const auto refused = [&](const TlsFiles& files, const std::string& why) {
    Party client(joining(Security::with_tls(files)));
    EXPECT_EQ(client.meet(server.address()), 0u) << why;
    const Closing closing = client.next_closing();
    EXPECT_EQ(closing.cause, CloseCause::kRefused) << closing.reason;
    EXPECT_THAT(closing.reason, HasSubstr(why));
  };
  refused(stranger_files, "unknown ca");
  refused(theirs.issue("v", "DNS:worker.4"), "certificate");  // the peer rejects us
  EXPECT_TRUE(server.comes_to_count("refused: tls", 2)) << server.counted("refused: tls");
  refused(ours.issue("old", "DNS:worker.5", -3600), "expired");
  Party no_role(joining(Security::with_tls(ours.issue("nobody", ""))));
  EXPECT_EQ(no_role.meet(server.address()), 0u);
  EXPECT_EQ(no_role.next_closing().cause, CloseCause::kRefused);
  EXPECT_TRUE(server.comes_to_count("refused: no role", 1));
  expect_lives(server, Security::with_tls(ours.issue("w2", "DNS:worker.6")));
}

TEST(ChannelTls, JunkInsteadOfTlsIsRejected) {
  const test::TemporaryFolder folder;
  test::Authority authority("ours", folder.path());
  const TlsFiles files = authority.issue("s", "DNS:server.7");
  Party server(serving(Security::with_tls(files)));
  for (const std::string& junk :
       {std::string(100, '\0'), std::string(20000, 'x'), std::string("TRWH\3\2\1\0x", 9)}) {
    const Socket socket = stranger(server.address());
    try {
      say(socket, junk);
    } catch (const CommError&) {
      // It may be disconnected while it still sends.
    }
    all_of(socket);
  }
  NodeLoopOptions without = joining();
  without.handshake_s = 0.5;  // both wait for the first message of the other one
  Party plain(std::move(without));
  EXPECT_EQ(plain.meet(server.address()), 0u);
  EXPECT_GE(server.counted("refused: tls"), 3u);
  expect_lives(server, Security::with_tls(files));
}

TEST(ChannelTls, FilesThatCannotBeUsedAreNamed) {
  const test::TemporaryFolder folder;
  test::Authority authority("ours", folder.path());
  TlsFiles files = authority.issue("s", "DNS:server.7");
  EXPECT_THAT(
      [&] {
        auto bad = files;
        bad.authority = "/nowhere.pem";
        NodeLoop loop(serving(Security::with_tls(bad)));
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("/nowhere.pem")));
  ::chmod(files.key.c_str(), 0644);
  EXPECT_THAT([&] { NodeLoop loop(serving(Security::with_tls(files))); },
              ThrowsMessage<InvalidArgument>(HasSubstr("chmod 600")));
}

}  // namespace
}  // namespace trireme::wire
