// The rank that is named after the loss of a rank that had posted a cause. The posted cause is read first,
// even from a slow store.
#include "trireme/comm/internal/watcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "tests/support/child_process.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

using testing::HasSubstr;

constexpr double kHang_s = 60;
constexpr const char* kPrefix = "world";
constexpr const char* kCause = "rank 1, group 'world': a backward pass ended early";

/// A store that delays its reports of failures until the test releases them.
class SlowToTell : public c10d::PrefixStore {
 public:
  using PrefixStore::PrefixStore;

  std::int64_t add(const std::string& key, std::int64_t number) override {
    if (key == "failures") {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, Seconds(kHang_s), [this] { return open_; });
    }
    return PrefixStore::add(key, number);
  }
  void let_through() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

/// Rank 0 of two, in an operation that rank 1, a process, never joins.
class GonePeer : public testing::Test {
 protected:
  void start(double period_s) {
    WatcherOptions options;
    for (const int pid : {static_cast<int>(::getpid()), peer_.pid()}) {
      Arrival& arrival = options.arrivals.emplace_back();
      arrival.host_id = "here";
      arrival.pid = pid;
    }
    options.connect = [store = slow_](double) -> c10::intrusive_ptr<c10d::Store> { return store; };
    options.status = telemetry::StatusPage::make_private();
    options.period_s = period_s;
    options.stall_s = 0.05;
    watcher_ = std::make_unique<Watcher>(std::move(options));
    GroupParts parts;
    parts.name = "world";
    parts.world_ranks = {0, 1};
    parts.timeout_s = 0.2;
    parts.watcher = watcher_.get();
    group_ = std::make_shared<Group::State>(std::move(parts));
    operation_.kind = OperationKind::kBarrier;
    group_->begin(operation_);
    watcher_->watch(group_);
  }
  void TearDown() override {
    slow_->let_through();
    group_.reset();
    watcher_.reset();
  }

  /// Like a rank that fails a group and ends.
  void post_cause_and_die(const std::string& group = "world") {
    post(text("failure/", 1, "/", 0), text(group, "\n", kCause));
    c10::make_intrusive<c10d::PrefixStore>(kPrefix, store_)->add("failures", 1);
    die();
  }
  void post(const std::string& key, const std::string& value) {
    c10::make_intrusive<c10d::PrefixStore>(kPrefix, store_)->c10d::Store::set(key, value);
  }
  void die() {
    peer_.send_signal(SIGKILL);
    peer_.wait(kHang_s);
  }

  bool comes_to_fail() const {
    for (const auto deadline = Deadline::after_s(kHang_s); !group_->failed();) {
      if (deadline.expired()) return false;
      std::this_thread::sleep_for(Seconds(0.005));
    }
    return true;
  }
  std::string failure() const {
    try {
      group_->check();
    } catch (const CommError& error) {
      return error.what();
    }
    return "none";
  }

  test::ChildProcess peer_{{"sleep", "600"}};
  c10::intrusive_ptr<c10d::HashStore> store_ = c10::make_intrusive<c10d::HashStore>();
  c10::intrusive_ptr<SlowToTell> slow_ = c10::make_intrusive<SlowToTell>(kPrefix, store_);
  std::unique_ptr<Watcher> watcher_;
  std::shared_ptr<Group::State> group_;
  Operation operation_;
};

TEST_F(GonePeer, CauseOfPeerExplainsBrokenOperation) {
  start(/*period_s=*/kHang_s);  // reports are read on request only
  slow_->let_through();
  post_cause_and_die();
  group_->note_failure(operation_, std::make_exception_ptr(std::runtime_error("connection closed")));
  EXPECT_EQ(failure(), kCause);
}

TEST_F(GonePeer, PeerThatLeftAfterFailureIsBlameless) {
  slow_->let_through();
  Heartbeat last;
  last.number = 1;
  last.leaves = true;
  post("beat/1", encode(last));
  post_cause_and_die("tp@1");
  start(/*period_s=*/0.02);
  const Group::State::WaitScope waits(*group_, operation_);
  ASSERT_TRUE(comes_to_fail());
  EXPECT_THAT(failure(), HasSubstr(text("has left the world because of this: ", kCause)));
}

TEST_F(GonePeer, SilentPeerIsBlamedForBrokenOperation) {
  start(/*period_s=*/kHang_s);
  slow_->let_through();
  die();
  group_->note_failure(operation_, std::make_exception_ptr(std::runtime_error("connection closed")));
  EXPECT_THAT(failure(), HasSubstr(text(": rank 1 (pid ", peer_.pid(), ") is dead")));
}

TEST_F(GonePeer, PeerIsBlamelessUntilCauseIsRead) {
  post_cause_and_die();
  start(/*period_s=*/0.02);
  const Group::State::WaitScope waits(*group_, operation_);
  std::this_thread::sleep_for(Seconds(2.5));  // longer than any grace period
  EXPECT_EQ(failure(), "none");
  slow_->let_through();
  ASSERT_TRUE(comes_to_fail());
  EXPECT_EQ(failure(), kCause);
}

TEST_F(GonePeer, IsNamedDespiteForeignValuesInStore) {
  slow_->let_through();
  post("beat/1", "GET / HTTP/1.1");
  post("operations/world/1", "GET / HTTP/1.1");
  start(/*period_s=*/0.02);
  const Group::State::WaitScope waits(*group_, operation_);
  ASSERT_TRUE(comes_to_fail());
  EXPECT_THAT(failure(), HasSubstr(text("rank 1 (pid ", peer_.pid(), ") was last heard of")));
}

}  // namespace
}  // namespace trireme::comm
