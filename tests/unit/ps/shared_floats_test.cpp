// Values that other threads read while they are changed.

#include "trireme/ps/internal/shared_floats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

namespace trireme::ps {
namespace {

std::span<const float> floats_of(const wire::Buffer& buffer) {
  return {reinterpret_cast<const float*>(buffer.bytes().data()), buffer.size() / sizeof(float)};
}

TEST(SharedFloats, AreChangedInPlaceWhereNobodyReads) {
  SharedFloats floats({1, 2});
  const float* before = floats.get().data();
  floats.lease();  // ends immediately
  floats.change()[0] = 5;
  EXPECT_EQ(floats.get().data(), before);
  EXPECT_EQ(floats.get()[0], 5);
}

TEST(SharedFloats, AreCopiedBeforeChangeWithReaders) {
  SharedFloats floats({1, 2});
  const SharedFloats copy = floats;
  const wire::Buffer lease = floats.lease();
  floats.change()[0] = 5;
  EXPECT_EQ(floats_of(lease)[0], 1);
  EXPECT_EQ(copy.get()[0], 1);
  EXPECT_EQ(floats.get()[0], 5);
  const float* now = floats.get().data();
  floats.change()[0] = 6;
  EXPECT_EQ(floats.get().data(), now) << "nobody reads the copy";
}

/// One thread adds, like an owner. Other threads read leased values, like a loop that sends replies.
TEST(SharedFloats, AreNeverSeenHalfChanged) {
  constexpr int kRounds = 20'000;
  SharedFloats floats(std::vector<float>(64, 0));
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<wire::Buffer> leases;
  bool is_over = false;
  int num_torn = 0, num_read = 0;
  const auto read = [&] {
    while (true) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return is_over || !leases.empty(); });
      if (leases.empty()) return;
      wire::Buffer lease = std::move(leases.front());
      leases.pop_front();
      lock.unlock();
      const auto seen = floats_of(lease);
      const bool torn = !std::ranges::all_of(seen, [&](float value) { return value == seen.front(); });
      lease = {};  // without the lock, which would order the accesses instead of the lease
      lock.lock();
      num_torn += torn ? 1 : 0;
      ++num_read;
    }
  };
  std::thread first(read), second(read);
  int in_place = 0, num_leases = 0;
  for (int i = 0; i < kRounds; ++i) {
    const float* before = floats.get().data();
    for (float& value : floats.change()) value += 1;
    in_place += floats.get().data() == before ? 1 : 0;
    if (i % 4 != 0) continue;
    ++num_leases;
    wire::Buffer lease = floats.lease();
    const std::lock_guard lock(mutex);
    leases.push_back(std::move(lease));
    changed.notify_one();
  }
  {
    const std::lock_guard lock(mutex);
    is_over = true;
  }
  changed.notify_all();
  first.join();
  second.join();
  EXPECT_EQ(num_read, num_leases);
  EXPECT_EQ(num_torn, 0);
  EXPECT_GT(in_place, kRounds / 4) << "a copy is the exception";
}

}  // namespace
}  // namespace trireme::ps
