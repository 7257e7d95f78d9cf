// An attacker on the path between the ends of a channel, who can change packets. Both ends see the addresses
// that they expect, since the attacker's connections have them.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstring>
#include <future>
#include <optional>
#include <thread>

#include "tests/security/middleman.h"
#include "tests/unit/wire/channel_party.h"
#include "trireme/base/error.h"
#include "trireme/wire/internal/send_queue.h"

namespace trireme::wire {
namespace {

using test::Middleman;

constexpr std::uint16_t kKind = 7;

/// A network namespace for the server with the same addresses as this one. Needs root.
class OtherNetwork {
 public:
  OtherNetwork() {
    std::thread([this] {
      if (::unshare(CLONE_NEWNET) != 0) return;
      ifreq up{};
      std::strcpy(up.ifr_name, "lo");
      up.ifr_flags = IFF_UP;
      const Socket any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      if (::ioctl(any.fd(), SIOCSIFFLAGS, &up) == 0)
        network_ = Socket(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    }).join();
  }
  bool is_there() const { return network_.fd() >= 0; }
  /// Runs `make` in that network, so that its sockets belong to it.
  template <class Make>
  auto within(const Make& make) const {
    return std::async(std::launch::async,
                      [&] {
                        if (::setns(network_.fd(), CLONE_NEWNET) != 0) throw CommError("no other network");
                        return make();
                      })
        .get();
  }

 private:
  Socket network_;
};

/// Connects from the client's own address with bind(2) and connect(2).
Socket connected_as(const Endpoint& client, const Endpoint& server) {
  const auto address = [](const Endpoint& endpoint) {
    sockaddr_in result{};
    result.sin_family = AF_INET;
    result.sin_port = htons(static_cast<std::uint16_t>(endpoint.port));
    result.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return result;
  };
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in from = address(client), to = address(server);
  if (::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&from), sizeof from) != 0 ||
      ::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
    throw CommError("the middleman does not reach the server");
  ::fcntl(socket.fd(), F_SETFL, O_NONBLOCK);
  return socket;
}

/// A complete frame. It takes no secret to make one.
std::string frame_of(const std::string& body) {
  SendQueue queue{{}};
  const auto bytes = std::as_bytes(std::span(body));
  queue.push({.kind = kKind, .body = Buffer::of({bytes.begin(), bytes.end()})});
  std::string frame;
  for (const iovec& part : queue.next(1 << 20, 96))
    frame.append(static_cast<const char*>(part.iov_base), part.iov_len);
  return frame;
}

class ChannelAttack : public testing::Test {
 protected:
  const Secret secret_ = Secret::from_text("the secret of this cluster", "the test");
  const OtherNetwork other_;
  std::optional<Party> server_;
  std::optional<Middleman> middleman_;
  std::optional<Party> client_;
  ConnectionId connection_ = 0;

  void begin(bool encrypted) {
    if (!other_.is_there()) GTEST_SKIP() << "only root has a network of its own";
    const Security security = Security::with_secret(secret_, encrypted);
    const int port = bind_to({"127.0.0.1", 0}).local().port;
    const Endpoint at{"127.0.0.1", port};
    NodeLoopOptions serving{.listen = {"tcp:" + at.text()}, .security = security};
    serving.self = {.role = "server", .name = "1"};
    other_.within([&] {
      server_.emplace(serving);
      return 0;
    });
    middleman_.emplace(
        [this, at](const Endpoint& client) {
          return other_.within([&] { return connected_as(client, at); });
        },
        at);
    NodeLoopOptions joining{.security = security};
    joining.self = {.role = "worker", .name = "3"};
    client_.emplace(joining);
    connection_ = client_->meet("tcp:" + at.text());
    ASSERT_NE(connection_, 0U) << client_->next_closing().reason;
    ASSERT_TRUE(server_->wait_for_peers(1));
  }
  std::string told(const Message& message) const {
    const auto bytes = message.body.bytes();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  void say(const std::string& words) {
    const auto bytes = std::as_bytes(std::span(words));
    client_->send(connection_, {.kind = kKind, .body = Buffer::of({bytes.begin(), bytes.end()})});
  }
};

TEST_F(ChannelAttack, PathAttackerCannotReadEncryptedMessages) {
  begin(true);
  if (connection_ == 0) return;
  say("the weights of layer 1");
  EXPECT_EQ(told(server_->next_message()), "the weights of layer 1");
  EXPECT_EQ(middleman_->said_by_client().find("the weights"), std::string::npos);
}

TEST_F(ChannelAttack, PathAttackerCannotAddEncryptedMessages) {
  begin(true);
  if (connection_ == 0) return;
  middleman_->say_to_server(frame_of("forged"));
  EXPECT_EQ(server_->next_closing().cause, CloseCause::kByPeer);
  EXPECT_EQ(server_->num_messages(), 0U);
}

TEST_F(ChannelAttack, PathAttackerCannotChangeEncryptedMessages) {
  begin(true);
  if (connection_ == 0) return;
  middleman_->change_to_server([](std::string bytes) {
    bytes.back() ^= 1;
    return bytes;
  });
  say("a gradient");
  EXPECT_EQ(server_->next_closing().cause, CloseCause::kByPeer);
  EXPECT_EQ(server_->num_messages(), 0U);
}

TEST_F(ChannelAttack, RepeatedRecordClosesChannel) {
  begin(true);
  if (connection_ == 0) return;
  middleman_->change_to_server([](const std::string& bytes) { return bytes + bytes; });
  say("a gradient");
  EXPECT_EQ(server_->next_closing().cause, CloseCause::kByPeer);
  EXPECT_LE(server_->num_messages(), 1U);
}

}  // namespace
}  // namespace trireme::wire
