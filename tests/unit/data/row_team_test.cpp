#include "trireme/data/internal/row_team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace trireme::data {
namespace {

using namespace std::chrono_literals;

/// A thread that helps while the object exists.
class Helper {
 public:
  explicit Helper(RowTeam& team)
      : thread_([this, &team] {
          while (!stopping_) {
            team.help();
            std::this_thread::yield();
          }
        }) {}
  ~Helper() {
    stopping_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

/// Waits until the expected number of threads has arrived. False: they did not.
class MeetingPoint {
 public:
  explicit MeetingPoint(std::size_t threads) : threads_(threads) {}
  bool meet() {
    std::unique_lock lock(mutex_);
    there_.insert(std::this_thread::get_id());
    come_.notify_all();
    return come_.wait_for(lock, 10s, [&] { return there_.size() >= threads_; });
  }

 private:
  const std::size_t threads_;
  std::mutex mutex_;
  std::condition_variable come_;
  std::set<std::thread::id> there_;
};

TEST(RowTeam, ThreadWithoutTeamReadsInOrder) {
  std::vector<std::size_t> rows;
  for_each_row(4, [&](std::size_t row) { rows.push_back(row); });
  EXPECT_EQ(rows, (std::vector<std::size_t>{0, 1, 2, 3}));
}

TEST(RowTeam, ReadsEachRowOnceWithHelpers) {
  RowTeam team([] {}, 0);
  const Helper one(team), other(team);
  for (std::size_t count = 0; count < 200; ++count) {
    std::vector<std::atomic<int>> read(count);
    const RowTeam::Scope mine(team, count);
    for_each_row(count, [&](std::size_t row) { ++read[row]; });
    for (const std::atomic<int>& times : read) EXPECT_EQ(times, 1);
  }
}

TEST(RowTeam, ThreadsReadRowsOfBatchInParallel) {
  RowTeam team([] {}, 0);
  const Helper one(team), other(team);
  MeetingPoint three(3);
  std::atomic<int> met = 0;
  const RowTeam::Scope mine(team, 0);
  for_each_row(8, [&](std::size_t row) {
    if (row >= 1 && three.meet()) ++met;
  });
  EXPECT_EQ(met, 7);
}

TEST(RowTeam, FastRowsStayOnTheirThread) {
  int opened = 0;
  RowTeam team([&] { ++opened; }, 3600);
  const RowTeam::Scope mine(team, 0);
  std::set<std::thread::id> threads;
  for_each_row(100, [&](std::size_t) { threads.insert(std::this_thread::get_id()); });
  EXPECT_EQ(opened, 0);
  EXPECT_EQ(threads, std::set{std::this_thread::get_id()});
}

TEST(RowTeam, BatchNeededFirstIsReadFirst) {
  RowTeam team([] {}, 0);
  std::atomic<bool> later_is_open = false, earlier_is_open = false;
  std::thread other([&] {
    const RowTeam::Scope later(team, 7);
    for_each_row(50, [&](std::size_t row) {
      if (row != 1) return;
      later_is_open = true;
      while (!earlier_is_open) std::this_thread::yield();
    });
  });
  while (!later_is_open) std::this_thread::yield();
  MeetingPoint both(2);
  const RowTeam::Scope first(team, 3);
  for_each_row(3, [&](std::size_t row) {
    if (row == 0) return;
    earlier_is_open = true;
    EXPECT_TRUE(both.meet()) << "the other thread reads on in its own batch";
  });
  other.join();
}

TEST(RowTeam, FirstFailedRowIsThrown) {
  RowTeam team([] {}, 0);
  const Helper one(team), other(team);
  for (const std::size_t fails_last : {21, 22, 21, 22}) {
    const RowTeam::Scope mine(team, 0);
    std::string what;
    try {
      for_each_row(64, [&](std::size_t row) {
        if (row != 21 && row != 22) return;
        // A failure removes the remaining rows.
        while (row == fails_last && team.has_open_rows()) std::this_thread::yield();
        throw std::runtime_error(std::to_string(row));
      });
    } catch (const std::runtime_error& error) {
      what = error.what();
    }
    EXPECT_EQ(what, "21");
    EXPECT_FALSE(team.has_open_rows());
  }
}

TEST(RowTeam, NestedRowIsReadByItsThread) {
  RowTeam team([] {}, 0);
  const Helper one(team);
  const RowTeam::Scope mine(team, 0);
  std::atomic<int> elsewhere = 0, amid = 0;
  for_each_row(64, [&](std::size_t) {
    thread_local bool in_a_row = false;
    amid += in_a_row;
    in_a_row = true;
    const auto me = std::this_thread::get_id();
    for_each_row(8, [&](std::size_t) { elsewhere += me != std::this_thread::get_id(); });
    in_a_row = false;
  });
  EXPECT_EQ(elsewhere, 0);
  EXPECT_EQ(amid, 0);
}

}  // namespace
}  // namespace trireme::data
