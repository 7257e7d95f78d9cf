// The switch that simulates links between sites in tests and benchmarks: it delays, limits and cuts.

#include "tests/support/delayed_switch.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <future>
#include <optional>
#include <vector>

#include "tests/support/switched_hosts.h"
#include "trireme/base/error.h"
#include "trireme/wire/socket.h"

namespace trireme::topology {
namespace {

using test::SwitchedHosts;

/// Both ends of a connection between two hosts.
struct Connection {
  wire::Socket from, to;
};

std::optional<Connection> connect(const SwitchedHosts& hosts, int from, int to) {
  wire::Socket listening;
  std::optional<wire::Socket> connected;
  hosts.on_host(to, [&] { listening = wire::listen_at({hosts.address(to), 0}); });
  hosts.on_host(from, [&] { connected = wire::try_connect(listening.local(), Deadline::after_s(20)); });
  if (!connected) return {};
  pollfd polled{.fd = listening.fd(), .events = POLLIN, .revents = 0};
  if (::poll(&polled, 1, 20'000) != 1) return {};
  const int accepted = ::accept4(listening.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  return Connection{std::move(*connected), wire::Socket(accepted)};
}

/// Seconds from the sending of the first byte until the last has arrived.
double transfer_s(const wire::Socket& from, const wire::Socket& to, std::size_t size) {
  std::vector<std::byte> sent(size, std::byte{7}), received(size);
  const Deadline deadline = Deadline::after_s(30);
  const double began_s = now_s();
  auto sends = std::async(std::launch::async, [&] { wire::send_all(from, sent, deadline); });
  wire::receive_all(to, received, deadline);
  const double took_s = now_s() - began_s;
  sends.get();
  EXPECT_EQ(received, sent);
  return took_s;
}

TEST(DelayedSwitch, NoByteArrivesBeforeDelay) {
  const double delay_s = 0.02;
  const SwitchedHosts hosts(3, delay_s);
  if (!hosts.unavailable_because().empty()) GTEST_SKIP() << hosts.unavailable_because();
  for (const auto& [from, to] : {std::pair{0, 1}, {2, 0}, {1, 2}}) {
    const auto connection = connect(hosts, from, to);
    ASSERT_TRUE(connection) << from << " to " << to;
    EXPECT_GE(transfer_s(connection->from, connection->to, 1), delay_s);
    EXPECT_GE(transfer_s(connection->to, connection->from, 1), delay_s);
  }
}

TEST(DelayedSwitch, BytesTakeTimeOfCableRate) {
  const double bits_per_s = 40e6;
  const SwitchedHosts hosts(3, 0, bits_per_s);
  if (!hosts.unavailable_because().empty()) GTEST_SKIP() << hosts.unavailable_because();
  const std::size_t size = 1 << 20;
  const double min_s = static_cast<double>(size) * 8 / bits_per_s;
  const auto alone = connect(hosts, 0, 1);
  ASSERT_TRUE(alone);
  EXPECT_GE(transfer_s(alone->from, alone->to, size), min_s);
  EXPECT_GE(transfer_s(alone->to, alone->from, size), min_s);
  // Two hosts that send to one share the cable of that host, in any order.
  const auto other = connect(hosts, 2, 1);
  ASSERT_TRUE(other);
  const double began_s = now_s();
  auto beside = std::async(std::launch::async, [&] { return transfer_s(other->from, other->to, size); });
  transfer_s(alone->from, alone->to, size);
  beside.get();
  EXPECT_GE(now_s() - began_s, 2 * min_s);
}

TEST(DelayedSwitch, CutCablePassesNothingAndOthersContinue) {
  SwitchedHosts hosts(3, 0);
  if (!hosts.unavailable_because().empty()) GTEST_SKIP() << hosts.unavailable_because();
  const auto to_cut = connect(hosts, 0, 2);
  const auto beside = connect(hosts, 0, 1);
  ASSERT_TRUE(to_cut && beside);
  transfer_s(to_cut->from, to_cut->to, 1000);
  hosts.cut_cable(2);
  std::vector<std::byte> bytes(1000);
  wire::send_all(to_cut->from, bytes, Deadline::after_s(20));
  EXPECT_THROW(wire::receive_all(to_cut->to, bytes, Deadline::after_s(0.3)), CommError);
  transfer_s(beside->from, beside->to, 1000);
}

TEST(DelayedSwitch, RejectsTakenNameAndKeepsItsHosts) {
  if (const SwitchedHosts probe(1, 0); !probe.unavailable_because().empty())
    GTEST_SKIP() << probe.unavailable_because();
  const test::SwitchOptions options{.name = text("trireme-test-", ::getpid(), "-taken"), .num_hosts = 1};
  const test::DelayedSwitch first(options);
  EXPECT_THROW(test::DelayedSwitch second(options), std::runtime_error);
  EXPECT_EQ(test::run({"ip", "-n", first.host_name(0), "link", "show", "cable"}).exit_code, 0);
}

}  // namespace
}  // namespace trireme::topology
