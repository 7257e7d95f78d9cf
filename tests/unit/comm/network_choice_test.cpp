#include "trireme/comm/internal/network_choice.h"

#include <gmock/gmock.h>

namespace trireme::comm {
namespace {

using testing::HasSubstr;

std::vector<Arrival> ranks(const std::vector<std::pair<std::string, std::string>>& hosts_and_reasons) {
  std::vector<Arrival> arrivals;
  for (const auto& [host, reason] : hosts_and_reasons) {
    Arrival& arrival = arrivals.emplace_back();
    arrival.host_id = host;
    arrival.not_ucx_because = reason;
  }
  return arrivals;
}

TEST(NetworkChoice, IsTcpWhereAHostLacksUcx) {
  EXPECT_EQ(choose_unmeasured(ranks({{"a", ""}, {"a", ""}, {"b", ""}})), std::nullopt);
  const auto one_host = choose_unmeasured(ranks({{"a", ""}, {"a", ""}}));
  ASSERT_TRUE(one_host);
  EXPECT_EQ(one_host->network, "tcp");
  EXPECT_EQ(one_host->reason, "all ranks are on one host");
  const auto without = choose_unmeasured(ranks({{"a", ""}, {"b", "no RDMA adapter has an active port"}}));
  ASSERT_TRUE(without);
  EXPECT_EQ(without->network, "tcp");
  EXPECT_EQ(without->reason, "no RDMA adapter has an active port (rank 1)");
  EXPECT_FALSE(without->is_news);
}

TEST(NetworkChoice, IsUcxWhereMeasuredAsFaster) {
  const topology::MessageCost tcp{.alpha_s = 20e-6, .beta_s_per_byte = 1e-9};
  const auto over = [&](double alpha, double beta) {
    return choose_measured(tcp,
                           {.alpha_s = alpha * tcp.alpha_s, .beta_s_per_byte = beta * tcp.beta_s_per_byte});
  };
  EXPECT_EQ(over(0.2, 0.2).network, "ucx");
  EXPECT_EQ(over(1.05, 0.5).network, "ucx");
  EXPECT_EQ(over(1.5, 0.5).network, "tcp") << "small messages are slower";
  EXPECT_EQ(over(0.2, 0.95).network, "tcp") << "too little to gain";
  EXPECT_EQ(over(1, 1).network, "tcp");
  EXPECT_TRUE(over(1, 1).is_news);
  EXPECT_THAT(
      over(0.2, 0.2).reason,
      HasSubstr("a message of 4 MiB takes 843 us over UCX and 4214 us over TCP, a small one 4 us and 20 us"));
}

}  // namespace
}  // namespace trireme::comm
