// Guarantees of every transport of a channel, checked over each of them.

#include "tests/support/certificates.h"
#include "tests/unit/wire/channel_party.h"

namespace trireme::wire {
namespace {

using testing::HasSubstr;

/// A transport: the address of its listener, and the options of both ends.
struct Way {
  const char* name;
  std::function<Address(const test::TemporaryFolder&)> address;
  NodeLoopOptions options;
};

Secret suite_secret() { return Secret::from_text(std::string(32, 's'), "the test"); }

std::vector<Way> ways() {
  const auto tcp = [](const auto&) { return Address("tcp:127.0.0.1:0"); };
  const auto unix_socket = [](const auto& folder) { return "unix:" + (folder / "sockets/node").string(); };
  const auto no_file = [](const auto& folder) { return "unix:@" + folder.path().filename().string(); };
  const auto inproc = [](const auto& folder) { return "inproc:" + folder.path().filename().string(); };
  static const test::TemporaryFolder folder;
  static test::Authority authority("suite", folder.path());
  NodeLoopOptions with_secret, with_tls, without_memory, small_rings;
  with_tls.security = Security::with_tls(authority.issue("peer", "DNS:worker.1"));
  small_rings.ring_bytes = 4096;
  with_secret.security = Security::with_secret(suite_secret());
  without_memory.shared_memory = SharedMemoryUse::kNever;
  return {{"tcp", tcp, {}},
          {"tcp_secret", tcp, with_secret},
          {"tcp_tls", tcp, with_tls},
          {"unix_socket", unix_socket, without_memory},
          {"shared_memory", unix_socket, {}},
          {"shared_memory_no_file", no_file, {}},
          {"small_rings", unix_socket, small_rings},
          {"inproc", inproc, without_memory}};
}

class ChannelSuite : public testing::TestWithParam<Way> {
 protected:
  NodeLoopOptions options() const { return GetParam().options; }
  NodeLoopOptions listening() const {
    NodeLoopOptions result = GetParam().options;
    result.listen = {GetParam().address(folder_)};
    return result;
  }
  test::TemporaryFolder folder_;
};

/// Sends each message back.
void echo(Network& network, ConnectionId from, Message message) { network.send(from, std::move(message)); }

TEST_P(ChannelSuite, MessagesOfAllSizesRoundTrip) {
  Party server(listening(), echo), client(options());
  const ConnectionId to = client.meet(server.address());
  ASSERT_NE(to, 0u);
  for (const std::size_t bytes :
       {0u, 1u, 63u, 64u, 4096u, 65535u, 65536u, 262144u, 1048575u, 1048576u, 5000000u}) {
    const Message sent{.kind = 7, .head = head_of(text("of ", bytes)), .body = body_of(bytes, bytes)};
    client.send(to, sent);
    const Message back = client.next_message();
    EXPECT_EQ(back.kind, 7);
    EXPECT_EQ(back.head, sent.head);
    EXPECT_TRUE(same_bytes(back.body, sent.body)) << bytes;
  }
}

TEST_P(ChannelSuite, SixtyFourMebibytesArrive) {
  Party server(listening()), client(options());
  const ConnectionId to = client.meet(server.address());
  const Buffer body = body_of(64 << 20);
  for (int i = 0; i < 3; ++i) client.send(to, {.body = body});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bytes(server.next_message().body, body));
}

TEST_P(ChannelSuite, MessagesOfOnePriorityKeepTheirOrder) {
  Party server(listening()), client(options());
  const ConnectionId to = client.meet(server.address());
  constexpr std::uint16_t kMessages = 3000;
  client.act([&, to](Network& network) {
    for (std::uint16_t i = 0; i < kMessages; ++i) {
      network.send(to,
                   {.kind = i, .priority = static_cast<Priority>(i % 3), .body = body_of(i * 97 % 9000, i)});
    }
  });
  std::map<Priority, std::uint16_t> last;
  for (int i = 0; i < kMessages; ++i) {
    const Message message = server.next_message();
    EXPECT_TRUE(same_bytes(message.body, body_of(message.kind * 97 % 9000, message.kind)));
    auto& before = last.emplace(message.priority, 0).first->second;
    EXPECT_LE(before, message.kind);
    before = message.kind;
  }
}

INSTANTIATE_TEST_SUITE_P(EachWay, ChannelSuite, testing::ValuesIn(ways()),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace trireme::wire
