#include "trireme/base/io_thread.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <vector>

namespace trireme {
namespace {

TEST(IoThread, RunsTasksInOrder) {
  std::vector<int> done;
  IoThread thread("test");
  std::vector<std::future<void>> ends;
  for (int i = 0; i < 100; ++i) ends.push_back(thread.start([&done, i] { done.push_back(i); }));
  for (auto& end : ends) end.get();
  ASSERT_EQ(done.size(), 100u);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
}

TEST(IoThread, PassesExceptionToFutureAndContinues) {
  IoThread thread("test");
  std::future<void> fails = thread.start([] { throw std::runtime_error("the disk is gone"); });
  std::future<void> works = thread.start([] {});
  EXPECT_THROW(fails.get(), std::runtime_error);
  works.get();
}

TEST(IoThread, DestructorRunsRemainingTasks) {
  int done = 0;
  {
    IoThread thread("test");
    for (int i = 0; i < 100; ++i) thread.start([&done] { ++done; });
  }
  EXPECT_EQ(done, 100);
}

TEST(IoThread, ReleasesFinishedTasks) {
  const auto held = std::make_shared<int>(1);
  IoThread thread("test");
  thread.start([held] {}).get();
  thread.start([] {}).get();  // the previous one has ended by now
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace trireme
