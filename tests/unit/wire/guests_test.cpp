// Peers that hold connections without being members: limits of their number and time. Members, and peers that
// want to become members, are served meanwhile.

#include <vector>

#include "tests/support/resource_limit.h"
#include "tests/unit/wire/channel_party.h"
#include "trireme/base/error.h"
#include "trireme/wire/socket.h"
#include "trireme/wire/store_client.h"
#include "trireme/wire/store_server.h"

namespace trireme::wire {
namespace {

/// A server that closes connections whose peers have not registered after `guest_s`.
NodeLoopOptions guarded(int max_strangers, double guest_s = NodeLoopOptions().guest_s) {
  NodeLoopOptions options;
  options.listen = {"tcp:127.0.0.1:0"};
  options.self = {.role = "server", .name = "7"};
  options.max_strangers = max_strangers;
  options.guest_s = guest_s;
  return options;
}

NodeLoopOptions guest(const std::string& name) {
  NodeLoopOptions options;
  options.self = {.role = "worker", .name = name};
  return options;
}

/// The handshakes of many connections of one peer, which sends nothing else on them.
std::vector<ConnectionId> hold(Party& peer, const Address& address, int count) {
  std::vector<ConnectionId> held;
  for (int i = 0; i < count; ++i) held.push_back(peer.connect(address));
  return held;
}

void expect_served(Party& server, const std::string& name) {
  Party member(guest(name));
  const ConnectionId to = member.meet(server.address());
  ASSERT_NE(to, 0u);
  const std::size_t before = server.num_messages();
  member.send(to, {.body = body_of(100)});
  EXPECT_TRUE(server.wait_for_messages(before + 1));
}

TEST(SecurityGuests, ThatSayNothingMakeRoomForOthers) {
  Party server(guarded(20)), crowd(guest("crowd"));
  hold(crowd, server.address(), 100);
  EXPECT_TRUE(server.comes_to_count("refused: too many strangers", 79));
  expect_served(server, "member");
  EXPECT_LE(server.peers().size(), 21u);
}

TEST(SecurityGuests, AreClosedAfterTheirTime) {
  Party server(guarded(20, 0.2)), silent(guest("silent")), speaks(guest("speaks"));
  ASSERT_NE(silent.meet(server.address()), 0u);
  const ConnectionId to = speaks.meet(server.address());
  speaks.send(to, {.body = body_of(1)});
  EXPECT_TRUE(server.wait_for_messages(1));
  EXPECT_TRUE(server.comes_to_count("refused: not registered", 1));
  silent.next_closing();
  speaks.send(to, {.body = body_of(1)});
  EXPECT_TRUE(server.wait_for_messages(2));
}

TEST(SecurityGuests, AreMembersOnceTheNodeSaysSo) {
  auto options = guarded(20, 0.2);
  options.node_registers = true;
  Party server(std::move(options), [](Network& network, ConnectionId from, const Message& message) {
    if (message.body.size() == 2) network.register_peer(from);
  });
  Party guest_party(guest("guest")), member(guest("member"));
  const ConnectionId one = guest_party.meet(server.address()), other = member.meet(server.address());
  guest_party.send(one, {.body = body_of(1)});
  member.send(other, {.body = body_of(2)});
  EXPECT_TRUE(server.comes_to_count("refused: not registered", 1));
  guest_party.next_closing();
  member.send(other, {.body = body_of(2)});
  EXPECT_TRUE(server.wait_for_messages(3));
}

TEST(SecurityGuests, BusyMembersMakeRoomForOthers) {
  auto options = guarded(20);
  options.max_accepted = 40;
  Party server(std::move(options)), crowd(guest("crowd"));
  for (int i = 0; i < 60; ++i) {
    const ConnectionId to = crowd.meet(server.address());
    crowd.send(to, {.body = body_of(1)});
    EXPECT_TRUE(server.wait_for_messages(static_cast<std::size_t>(i) + 1));
  }
  EXPECT_TRUE(server.comes_to_count("refused: too many connections", 20));
  expect_served(server, "member");
}

TEST(SecurityGuests, UnprovenStoreClientsMakeRoomForRanks) {
  const test::ResourceLimit few(RLIMIT_NOFILE, 256);
  StoreServer server(listen_at({"127.0.0.1", 0}), {});
  std::vector<Socket> crowd;
  for (int i = 0; i < 90; ++i)  // both ends of each belong to this process
    if (auto socket = try_connect(server.endpoint(), Deadline::after_s(kPartyWait_s)))
      crowd.push_back(std::move(*socket));
  StoreClient rank({.endpoint = server.endpoint()});
  rank.set("key", "value", 30);
  EXPECT_EQ(rank.get("key", 30), "value");
}

}  // namespace
}  // namespace trireme::wire
