#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "tests/support/ports.h"

namespace trireme {
namespace {

TEST(TestPorts, AreNoneThatAnOutgoingConnectionGets) {
  int first = 0;
  int last = 0;
  ASSERT_TRUE(std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first >> last);
  if (first <= 10240) GTEST_SKIP() << "this host gives outgoing connections all ports from " << first;
  for (int i = 0; i < 20; ++i) {
    const int port = test::free_port();
    EXPECT_TRUE(port < first || port > last) << port;
  }
}

TEST(TestPorts, AreOthersEachTime) {
  std::set<int> all;
  for (int i = 0; i < 50; ++i) all.insert(test::free_port());
  EXPECT_EQ(all.size(), 50u);
}

}  // namespace
}  // namespace trireme
