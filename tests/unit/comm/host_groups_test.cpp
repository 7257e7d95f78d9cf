// Groups of the ranks of a host, and groups across hosts. Threads have host ids as if on several hosts.
#include "trireme/comm/host_groups.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/comm/internal/group_state.h"

namespace trireme::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using HostOfRank = std::vector<std::string>;

void on_hosts(const HostOfRank& hosts, const std::function<void(Context&)>& body) {
  run_ranks_as_threads(static_cast<int>(hosts.size()),
                       [&](Context& context) {
                         context.world().state().parts.host_ids = hosts;
                         body(context);
                       },
                       {.timeout_s = 20});
}

int sum_over(Group& group, int value) {
  at::Tensor sum = at::full({1}, value, at::kInt);
  group.all_reduce(sum);
  return sum.item<int>();
}

TEST(HostGroups, AddUpInsideAndAcrossHosts) {
  on_hosts({"a", "b", "a", "b", "b"}, [](Context& context) {
    EXPECT_EQ(num_hosts(context.world()), 2);
    HostGroups groups = make_host_groups(context.world());
    const int rank = context.rank(), host = rank == 0 || rank == 2 ? 0 : 1;
    EXPECT_EQ(groups.host, host);
    EXPECT_EQ(groups.num_hosts, 2);
    EXPECT_EQ(groups.lanes, 2);
    ASSERT_TRUE(groups.inside);
    EXPECT_EQ(groups.inside->name(), host == 0 ? "world.inside0" : "world.inside1");
    EXPECT_EQ(groups.inside->world_ranks(), host == 0 ? (std::vector{0, 2}) : (std::vector{1, 3, 4}));
    EXPECT_EQ(sum_over(*groups.inside, 1 << rank), host == 0 ? 5 : 26);
    EXPECT_EQ(groups.between.has_value(), rank != 4);
    if (rank == 4) return;
    const bool is_first = rank < 2;
    EXPECT_EQ(groups.between->world_ranks(), is_first ? (std::vector{0, 1}) : (std::vector{2, 3}));
    EXPECT_EQ(sum_over(*groups.between, 1 << rank), is_first ? 3 : 12);
  });
}

TEST(HostGroups, LoneRankHasNoInsidePeers) {
  on_hosts({"a", "b", "b"}, [](Context& context) {
    const HostGroups groups = make_host_groups(context.world());
    EXPECT_EQ(groups.lanes, 1);
    EXPECT_EQ(groups.inside.has_value(), context.rank() > 0);
    EXPECT_EQ(groups.between.has_value(), context.rank() < 2);
  });
}

TEST(HostGroups, OneHostHasRanksAlonePerLane) {
  on_hosts({"a", "a"}, [](Context& context) {
    const HostGroups groups = make_host_groups(context.world());
    EXPECT_EQ(groups.lanes, 2);
    EXPECT_EQ(groups.between->size(), 1);
    EXPECT_EQ(groups.inside->size(), 2);
  });
}

TEST(HostGroups, MadeTwiceHaveNamesOfTheirOwn) {
  on_hosts({"a", "a", "b"}, [](Context& context) {
    HostGroups first = make_host_groups(context.world()), second = make_host_groups(context.world());
    if (context.rank() == 2) return;
    EXPECT_EQ(second.inside->name(), "world.inside0#2");
    EXPECT_EQ(sum_over(*second.inside, 1), 2);
    EXPECT_EQ(sum_over(*first.inside, 1), 2);
  });
}

/// The error of each rank that waits in a group of its host for a rank that has failed `fails`.
void expect_all_to_hear(const std::function<void(Context&, HostGroups&)>& fails, const char* group) {
  std::vector<std::string> heard(4);
  std::promise<void> over;
  const std::shared_future<void> all_heard = over.get_future().share();
  std::atomic<int> num_heard = 0;
  on_hosts({"a", "a", "b", "b"}, [&](Context& context) {
    HostGroups groups = make_host_groups(context.world());
    const auto rank = static_cast<std::size_t>(context.rank());
    if (rank == 1) fails(context, groups);
    at::Tensor sum = at::full({1000}, 1);
    try {
      // Rank 2 waits for rank 3, which waits for rank 1, which fails.
      Group& group = rank == 3 ? *groups.between : *groups.inside;
      group.all_reduce(sum);
    } catch (const CommError& error) {
      heard[rank] = error.what();
    }
    if (++num_heard == 4) over.set_value();
    all_heard.wait();
  });
  for (const std::string& each : heard)
    EXPECT_THAT(each, AllOf(HasSubstr("rank 1, group '"), HasSubstr(group), HasSubstr("the test ends it")));
}

TEST(HostGroups, FailWithTheirParentGroup) {
  expect_all_to_hear([](Context& context, HostGroups&) { context.world().fail("the test ends it"); },
                     "'world'");
}

TEST(HostGroups, FailTheirParentGroup) {
  expect_all_to_hear([](Context&, HostGroups& groups) { groups.between->fail("the test ends it"); },
                     "'world.between1'");
}

}  // namespace
}  // namespace trireme::comm
