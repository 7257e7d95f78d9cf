// Rejected actions of unprotected peers: no socket is reachable from other hosts without a secret. No channel
// is plain if one end requires encryption.

#include <gmock/gmock.h>

#include "tests/unit/wire/channel_party.h"
#include "trireme/base/error.h"
#include "trireme/topology/exchange.h"
#include "trireme/wire/store_server.h"

namespace trireme::wire {
namespace {

const Endpoint kEverywhere{"0.0.0.0", 0};

TEST(WithoutASecret, NoStoreListensToOtherHosts) {
  EXPECT_THROW(StoreServer(listen_at(kEverywhere), {}), InvalidArgument);
}

TEST(WithoutASecret, NoChannelListensToOtherHosts) {
  NodeLoopOptions options;
  options.listen = {"tcp:0.0.0.0:0"};
  options.self = {.role = "server", .name = "7"};
  EXPECT_THROW(NodeLoop{options}, InvalidArgument);
}

TEST(WithoutASecret, NoRendezvousListensToOtherHosts) {
  const Socket listening = listen_at(kEverywhere);
  const topology::Membership membership{.rank = 0,
                                        .endpoints = {listening.local(), {"127.0.0.1", 9}},
                                        .names = {"rank 0", "rank 1"},
                                        .secret = {},
                                        .purpose = "a test"};
  EXPECT_THROW(topology::Exchange(listening, membership, Deadline::after_s(0.5)), InvalidArgument);
}

class Downgrade : public testing::TestWithParam<bool> {};

TEST_P(Downgrade, EncryptingEndRejectsPlainChannel) {
  const bool server_encrypts = GetParam();
  const auto options = [](bool encrypts) {
    NodeLoopOptions result;
    result.security =
        Security::with_secret(Secret::from_text("the secret of this cluster", "the test"), encrypts);
    result.handshake_s = 0.5;  // both ends may wait for the first message of the other one
    return result;
  };
  NodeLoopOptions listening = options(server_encrypts), joining = options(!server_encrypts);
  listening.listen = {"tcp:127.0.0.1:0"};
  listening.self = {.role = "server", .name = "7"};
  joining.self = {.role = "worker", .name = "3"};
  Party server(std::move(listening)), client(std::move(joining));
  EXPECT_EQ(client.meet(server.address()), 0U);
  EXPECT_EQ(server.peers().size(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Ends, Downgrade, testing::Bool(), [](const auto& each) {
  return each.param ? std::string("ServerEncrypts") : std::string("ClientEncrypts");
});

}  // namespace
}  // namespace trireme::wire
