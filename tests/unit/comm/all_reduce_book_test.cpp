// The memory of a rank about the all-reduces of its groups between hosts. Ranks are threads, and host ids
// simulate hosts.

#include "trireme/comm/internal/all_reduce_book.h"

#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "trireme/base/error.h"
#include "trireme/comm/internal/backend_table.h"

namespace trireme::comm {
namespace {

using topology::Algorithm;
using topology::AllReduceChoice;

const std::vector<std::string> kHosts{"a", "a", "b", "c", "b", "c"};

AllReduceChoice measured(double alpha_s) { return {.ranks = 3, .cost = {.alpha_s = alpha_s}}; }

class Book : public testing::Test {
 protected:
  /// Each rank agrees on the choice of a group of `ranks`, and would itself measure a different alpha.
  void agree(const std::vector<int>& ranks, const std::string& name) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        BackendRequest group{.store = store,
                             .rank = static_cast<int>(i),
                             .size = static_cast<int>(ranks.size()),
                             .group_name = name,
                             .world_ranks = ranks,
                             .host_ids = {},
                             .interface_addr = "127.0.0.1"};
        for (const int rank : ranks) group.host_ids.push_back(kHosts[static_cast<std::size_t>(rank)]);
        const auto me = static_cast<std::size_t>(ranks[i]);
        const auto measure = [&] {
          ++times_measured_;
          return measured(0.001 * (ranks[i] + 1));
        };
        choices_[me] = books_[me].agree(group, measure, Deadline::after_s(20));
      });
    }
    for (auto& thread : threads) thread.join();
  }

  std::vector<AllReduceBook> books_{kHosts.size()};
  std::vector<AllReduceBook::Choice> choices_{kHosts.size()};
  std::atomic<int> times_measured_ = 0;
};

TEST_F(Book, RanksOfHostsUseMeasurementOfFirst) {
  agree({0, 1, 2, 3, 4, 5}, "world");
  EXPECT_EQ(times_measured_, 6);
  for (const auto& each : choices_) EXPECT_EQ(each->cost.alpha_s, 0.001);
  for (const auto& each : books_)
    EXPECT_EQ(each.to_text(), "0,1|2,4|3,5 " + topology::to_text(measured(0.001)) + "\n");
}

TEST_F(Book, SameHostsAreNotMeasuredAgain) {
  agree({0, 1, 2, 3, 4, 5}, "world");
  agree({1, 4, 5}, "part");
  EXPECT_EQ(times_measured_, 6);
  EXPECT_EQ(choices_[4]->cost.alpha_s, 0.001);
  EXPECT_EQ(books_[4].to_text(), "0,1|2,4|3,5 3 measured 0.001 0 0\n1|4|5 3 measured 0.001 0 0\n");
}

TEST_F(Book, OneOverOtherHostsIsMeasured) {
  agree({1, 4, 5}, "three hosts");
  agree({1, 4}, "two of them");
  EXPECT_EQ(times_measured_, 5);
}

TEST_F(Book, TakenOverChoicesApplyToLaterGroups) {
  agree({0, 1, 2, 3, 4, 5}, "world");
  agree({1, 4, 5}, "part");
  for (auto& book : books_) book.take_over("0,1|2,4|3,5 3 forced tree\n0|1|2 3 forced ring\n");
  EXPECT_EQ(choices_[0]->of(1000), Algorithm::kTree) << "the world's, in use";
  EXPECT_EQ(choices_[1]->cost.alpha_s, 0.001) << "of the part nothing was said";
  agree({0, 2, 3}, "later");
  EXPECT_EQ(choices_[0]->of(1000), Algorithm::kTree);
  EXPECT_EQ(times_measured_, 6);
}

TEST_F(Book, ATextThatIsNoneChangesNothing) {
  agree({1, 4, 5}, "three hosts");
  const std::string before = books_[1].to_text();
  for (const char* wrong : {"1|4|5", "1|4|5 ", "1|4|5 3 forced rung", "1|4|5 2 forced ring",
                            "1|4|5 3 forced tree\n1|4|5 nonsense"}) {
    EXPECT_THROW(books_[1].take_over(wrong), InvalidArgument) << wrong;
    EXPECT_EQ(books_[1].to_text(), before) << wrong;
  }
  books_[1].take_over("");
  EXPECT_EQ(books_[1].to_text(), before);
}

TEST_F(Book, DescribesChoiceForEachSize) {
  agree({1, 4, 5}, "three hosts");
  books_[1].take_over("1|4|5 3 forced tree");
  EXPECT_EQ(books_[1].describe("1|4|5"), "tree");
  EXPECT_EQ(books_[1].describe("0,1|2"), "");
}

}  // namespace
}  // namespace trireme::comm
