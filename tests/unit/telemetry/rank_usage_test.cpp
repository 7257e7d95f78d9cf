#include "trireme/telemetry/rank_usage.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "tests/support/other_user.h"
#include "trireme/base/clock.h"
#include "trireme/telemetry/status_page.h"

namespace trireme::telemetry {
namespace {

std::int64_t spent_in(const Usage& usage, Activity activity) {
  return usage.spent_ns[static_cast<std::size_t>(activity)];
}
std::int64_t waited_in(const Usage& usage, Activity activity) {
  return usage.waited_ns[static_cast<std::size_t>(activity)];
}

TEST(RankUsage, ActivityTimesSumToTotal) {
  const auto page = StatusPage::make_private();
  RankUsage& usage = page->usage();
  const std::int64_t before_ns = now_ns();
  usage.begin(2);
  const std::int64_t begun_ns = now_ns();
  for (int i = 0; i < 100; ++i) {
    usage.enter(Activity::kForward, i);
    usage.enter(Activity::kBackward, i);
    const WaitForOthers wait(usage);
  }
  const Usage read = page->usage().read();
  const std::int64_t sum = std::accumulate(read.spent_ns.begin(), read.spent_ns.end(), std::int64_t{0});
  EXPECT_GE(sum, read.now.begin_ns - begun_ns);
  EXPECT_LE(sum, read.now.begin_ns - before_ns);
  EXPECT_GT(spent_in(read, Activity::kForward), 0);
  EXPECT_EQ(waited_in(read, Activity::kForward), 0);
  EXPECT_GT(waited_in(read, Activity::kBackward), 0);
  EXPECT_LT(waited_in(read, Activity::kBackward), spent_in(read, Activity::kBackward));
  EXPECT_EQ(read.world_size, 2);
  EXPECT_EQ(read.pid, ::getpid());
}

TEST(RankUsage, KeepsTheLastSpansWithTheirMicrobatches) {
  const auto page = StatusPage::make_private();
  RankUsage& usage = page->usage();
  usage.begin(1);
  usage.enter(Activity::kForward, 7);
  {
    const WaitForOthers wait(usage);
    const WaitForOthers inner(usage);
    EXPECT_TRUE(page->usage().read().now.waits);
  }
  const std::vector<ActivitySpan> spans = usage.read().spans;
  ASSERT_EQ(spans.size(), 4U) << "other, forward, the wait, forward: an inner wait is a part of the outer";
  EXPECT_EQ(spans[0].activity, Activity::kOther);
  EXPECT_EQ(spans[0].microbatch, -1);
  EXPECT_EQ(spans[1].microbatch, 7);
  EXPECT_TRUE(spans[2].waits);
  EXPECT_EQ(spans[2].activity, Activity::kForward);
  EXPECT_FALSE(spans[3].waits);
  for (int i = 0; i < 1000; ++i) usage.enter(Activity::kUpdate, i);
  const std::vector<ActivitySpan> later = usage.read().spans;
  EXPECT_EQ(later.size(), 64U);
  EXPECT_EQ(later.back().microbatch, 999);
  EXPECT_EQ(later.front().microbatch, 936);
}

TEST(RankUsage, WaitsOfOtherThreadsDoNotCount) {
  const auto page = StatusPage::make_private();
  RankUsage& usage = page->usage();
  usage.begin(1);
  std::thread([&] {
    const WaitForOthers wait(usage);
    EXPECT_FALSE(page->usage().read().now.waits);
  }).join();
  EXPECT_EQ(usage.read().spans.size(), 1U);
}

TEST(RankUsage, IsNotTornWhileItIsWritten) {
  const auto page = StatusPage::make_private();
  page->usage().begin(1);
  const std::int64_t first_ns = page->usage().read().now.begin_ns;
  std::atomic<bool> ends{false};
  std::thread writer([&] {
    while (!ends) {
      page->usage().enter(Activity::kForward);
      page->usage().enter(Activity::kBackward);
      // A rank works between two transitions.
      for (const std::int64_t until_ns = now_ns() + 500; now_ns() < until_ns && !ends;) {
      }
    }
  });
  std::int64_t last_ns = 0;
  for (int num_states = 0; num_states < 200;) {
    const Usage read = page->usage().read();
    const std::int64_t sum = std::accumulate(read.spent_ns.begin(), read.spent_ns.end(), std::int64_t{0});
    if (read.now.begin_ns != last_ns) ++num_states;
    last_ns = read.now.begin_ns;
    EXPECT_EQ(sum, read.now.begin_ns - first_ns);
    for (std::size_t span = 1; span < read.spans.size(); ++span)
      EXPECT_LE(read.spans[span - 1].begin_ns, read.spans[span].begin_ns);
  }
  ends = true;
  writer.join();
}

TEST(RankUsage, CountsProcessIoByUse) {
  const auto page = StatusPage::make_private();
  page->usage().begin(1);
  const Usage before = page->usage().read();
  count_disk_read(DiskUse::kData, 1000);
  count_disk_write(DiskUse::kOffload, 24);
  page->usage().count_sent(8);
  page->usage().count_sent(8);
  page->usage().set_loader(2.5, 4, 3);
  page->usage().enter(Activity::kUpdate);
  const Usage after = page->usage().read();
  EXPECT_EQ(after.disk[0].read - before.disk[0].read, 1000U);
  EXPECT_EQ(after.disk[2].written - before.disk[2].written, 24U);
  EXPECT_EQ(after.disk[1].written, before.disk[1].written);
  EXPECT_EQ(after.sent_bytes, 16U);
  EXPECT_EQ(after.loader_fill, 2.5);
  EXPECT_EQ(after.loader_batches, 4);
  EXPECT_EQ(after.loader_depth, 3);
}

TEST(RankUsage, IsReadByOtherProcessOfUser) {
  ::unsetenv("TRIREME_STATUS_FD");
  int go[2], stop[2];
  ASSERT_EQ(::pipe(go), 0);
  ASSERT_EQ(::pipe(stop), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto page = StatusPage::from_environment();
    page->set_rank(3);
    page->set_run("/somewhere/runs/a");
    page->usage().begin(4);
    page->usage().enter(Activity::kBackward, 5);
    char byte = 'x';
    if (::write(go[1], &byte, 1) != 1) ::_exit(1);
    ::close(stop[1]);
    [[maybe_unused]] const auto got = ::read(stop[0], &byte, 1);
    ::_exit(0);
  }
  ::close(stop[0]);
  char byte = 0;
  ASSERT_EQ(::read(go[0], &byte, 1), 1);
  bool found = false;
  for (int fd = 0; fd < 64 && !found; ++fd) {
    std::uint64_t identity = 0;
    const auto page = StatusPage::open_of(child, fd, &identity);
    if (!page) continue;
    found = true;
    EXPECT_NE(identity, 0U);
    EXPECT_EQ(page->read().rank, 3);
    EXPECT_EQ(page->read().run, "/somewhere/runs/a");
    EXPECT_EQ(page->usage().read().pid, child);
    EXPECT_EQ(page->usage().read().now.activity, Activity::kBackward);
    EXPECT_EQ(page->usage().read().now.microbatch, 5);
  }
  EXPECT_TRUE(found);
  ::close(stop[1]);
  ::waitpid(child, nullptr, 0);
  for (const int fd : {go[0], go[1]}) ::close(fd);
}

TEST(RankUsage, SecurityAnotherUserCannotOpenStatusPage) {
  SKIP_UNLESS_ROOT();
  int descriptor = -1;
  const auto page = StatusPage::create(&descriptor);
  std::uint64_t identity = 0;
  ASSERT_NE(StatusPage::open_of(::getpid(), descriptor, &identity), nullptr);
  const int owner = ::getpid();
  EXPECT_EQ(test::as_user(test::kOtherUser,
                          [&] {
                            const auto opened = StatusPage::open_of(owner, descriptor, &identity);
                            return std::string(opened ? "opened" : "closed to it");
                          }),
            "closed to it");
  ::close(descriptor);
}

}  // namespace
}  // namespace trireme::telemetry
