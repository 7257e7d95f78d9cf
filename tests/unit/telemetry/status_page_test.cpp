#include "trireme/telemetry/status_page.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "tests/support/temporary_folder.h"
#include "trireme/base/text.h"

namespace trireme::telemetry {
namespace {

TEST(StatusPage, KeepsTheLastWrittenValues) {
  const auto page = StatusPage::make_private();
  EXPECT_EQ(page->read().rank, -1);
  page->set_rank(3);
  page->set_step(12);
  page->set_action("step 12: 0B3");
  page->set_operation("all_reduce #57 of group world");
  page->set_operation("barrier #58");
  const auto status = page->read();
  EXPECT_EQ(status.rank, 3);
  EXPECT_EQ(status.step, 12U);
  EXPECT_EQ(status.action, "step 12: 0B3");
  EXPECT_EQ(status.operation, "barrier #58");
  EXPECT_GT(status.updated_s, 0);
}

TEST(StatusPage, ShowsInnermostWorkWhileItLasts) {
  const auto page = StatusPage::make_private();
  {
    const OwnWork outer(*page, "verifying");
    {
      const OwnWork inner(*page, "waiting for data");
      EXPECT_EQ(page->read().own_work, "waiting for data");
    }
    EXPECT_EQ(page->read().own_work, "verifying");
  }
  EXPECT_EQ(page->read().own_work, "");
}

TEST(StatusPage, CutsLongTexts) {
  const auto page = StatusPage::make_private();
  page->set_action(std::string(5000, 'x'));
  const auto action = page->read().action;
  EXPECT_GE(action.size(), 200U);
  EXPECT_LT(action.size(), 300U);
  EXPECT_EQ(action, std::string(action.size(), 'x'));
  page->set_action("");
  EXPECT_EQ(page->read().action, "");
}

TEST(StatusPage, IsReadAfterItsWriterWasKilled) {
  int descriptor = -1;
  const auto page = StatusPage::create(&descriptor);
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("TRIREME_STATUS_FD", std::to_string(descriptor).c_str(), 1);
    const auto own = StatusPage::from_environment();
    own->set_rank(5);
    own->set_operation("all_reduce #7");
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(page->read().rank, 5);
  EXPECT_EQ(page->read().operation, "all_reduce #7");
  ::close(descriptor);
}

TEST(StatusPage, IgnoresADescriptorThatIsNoPage) {
  for (const char* value : {"0", "-1", "99999", "x", ""}) {
    ::setenv("TRIREME_STATUS_FD", value, 1);
    const auto page = StatusPage::from_environment();
    page->set_step(4);
    EXPECT_EQ(page->read().step, 4U) << value;
  }
  ::unsetenv("TRIREME_STATUS_FD");
}

TEST(SecurityStatusPage, KeepsItsSizeUnderItsReaders) {
  int descriptor = -1;
  const auto page = StatusPage::create(&descriptor);
  EXPECT_NE(::ftruncate(descriptor, 0), 0) << "a reader would be killed by SIGBUS";
  ::close(descriptor);
}

TEST(SecurityStatusPage, IsNotReadWhereOwnerMayTruncate) {
  int descriptor = -1;
  const auto page = StatusPage::create(&descriptor);
  std::array<char, 4096> bytes{};
  ASSERT_EQ(::pread(descriptor, bytes.data(), bytes.size(), 0), 4096);
  const int copy = ::memfd_create("trireme-status", 0);
  ASSERT_EQ(::pwrite(copy, bytes.data(), bytes.size(), 0), 4096);
  std::uint64_t identity = 0;
  EXPECT_NE(StatusPage::open_of(::getpid(), descriptor, &identity), nullptr);
  EXPECT_EQ(StatusPage::open_of(::getpid(), copy, &identity), nullptr);
  for (const int fd : {descriptor, copy}) ::close(fd);
}

TEST(SecurityStatusPage, FifoInItsPlaceIsNotAwaited) {
  const test::TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  const int fifo = ::open((folder / "fifo").c_str(), O_RDONLY | O_NONBLOCK);
  std::uint64_t identity = 0;
  EXPECT_EQ(StatusPage::open_of(::getpid(), fifo, &identity), nullptr);
  ::close(fifo);
}

TEST(StatusPage, ReadersNeverSeeHalfAText) {
  const auto page = StatusPage::make_private();
  page->set_operation(std::string(200, 'a'));
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 0; !stop; ++i) {
      page->set_operation(
          std::string(static_cast<std::size_t>(150 + i % 50), static_cast<char>('a' + i % 26)));
      std::this_thread::yield();
    }
  });
  int torn = 0;
  for (int i = 0; i < 5000; ++i) {
    const auto text = page->read().operation;
    if (text.size() < 150 || text != std::string(text.size(), text.front())) ++torn;
  }
  stop = true;
  writer.join();
  EXPECT_EQ(torn, 0);
}

}  // namespace
}  // namespace trireme::telemetry
