// A server that is asked to stop. It hands over the partitions that other servers take, and ends even if no
// server takes them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <future>
#include <string>
#include <vector>

#include "tests/unit/ps/real_cluster.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/ps/client.h"

namespace trireme::ps {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class LeavingServer : public testing::Test {
 protected:
  void serve() {
    ServeOptions serve;
    serve.loop.listen = {"tcp:127.0.0.1:0"};
    serve.stop = &stop_;
    serve.leave_timeout_s = 0.5;
    const ServerOptions server{
        .name = "last", .host = "here", .address = {}, .coordinator = cluster_.address()};
    ended_ = std::async(std::launch::async, [=] { serve_params(server, serve); });
  }
  /// Waits until all partitions have this number of servers. Returns whether they do.
  bool have_servers(std::size_t count) {
    const auto deadline = Deadline::after_s(60);
    while (!deadline.expired()) {
      const ClusterMap map = client_.map();
      const auto has = [&](const PartitionEntry& each) {
        return each.chain.size() == count && each.learner == kNoServer && !each.draining;
      };
      if (!map.partitions.empty() && std::ranges::all_of(map.partitions, has)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }
  void push() {
    const TableId table = client_.open_table({.name = "w", .num_elements = 1000});
    client_.push(table, std::vector<float>(1000, 1)).get();
  }
  /// The exception of the server after it is asked to stop. Empty if it returns.
  std::string told_to_stop() {
    ::raise(SIGTERM);
    EXPECT_EQ(ended_.wait_for(std::chrono::seconds(60)), std::future_status::ready) << "it does not end";
    try {
      ended_.get();
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  }

  RealCluster cluster_{1};
  Client client_{{.worker = 0, .host = "here", .coordinator = cluster_.address()}};
  StopRequest stop_;
  std::future<void> ended_;
};

TEST_F(LeavingServer, EndsWithoutLossBesideReplica) {
  push();
  serve();
  ASSERT_TRUE(have_servers(2));
  EXPECT_EQ(told_to_stop(), "");
  EXPECT_TRUE(have_servers(1));
}

TEST_F(LeavingServer, LastServerEndsAndNamesLostValues) {
  push();
  serve();
  ASSERT_TRUE(have_servers(2));
  cluster_.end_server(0);
  ASSERT_TRUE(have_servers(1));
  EXPECT_THAT(told_to_stop(),
              AllOf(HasSubstr("server last ends with 16 partition(s) that it could not give away"),
                    HasSubstr("no other server holds 16 of them, whose values are lost")));
}

TEST_F(LeavingServer, LastServerWithoutTablesLosesNothing) {
  serve();
  ASSERT_TRUE(have_servers(2));
  cluster_.end_server(0);
  ASSERT_TRUE(have_servers(1));
  EXPECT_EQ(told_to_stop(), "");
}

}  // namespace
}  // namespace trireme::ps
