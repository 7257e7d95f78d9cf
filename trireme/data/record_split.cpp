#include "trireme/data/internal/record_split.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <thread>

namespace trireme::data {
namespace {

constexpr std::size_t kMaxSideBySide = 16;

/// Runs `body` on several threads: it mostly waits for a server. Rethrows the error of the lowest index that
/// failed.
void for_each_side_by_side(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::vector<std::exception_ptr> problems(count);
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  const auto work = [&] {
    for (std::size_t i = next++; i < count && !failed; i = next++) {
      try {
        body(i);
      } catch (...) {
        problems[i] = std::current_exception();
        failed = true;
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < std::min(count, kMaxSideBySide); ++i) threads.emplace_back(work);
  }
  for (const std::exception_ptr& problem : problems) {
    if (problem) std::rethrow_exception(problem);
  }
}

}  // namespace

RecordSplit::RecordSplit(const PackedFiles& files, const PackedSplit& split) : shards_(split.shards.size()) {
  std::vector<std::int64_t> first(shards_.size());
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    first[i] = size_;
    size_ += split.shards[i].records;
  }
  const auto open = [&](std::size_t i) {
    shards_[i] = std::make_unique<ShardFile>(files.open(split.shards[i].file), split.shards[i], first[i]);
  };
  if (files.are_far()) {
    for_each_side_by_side(shards_.size(), open);
  } else {
    for (std::size_t i = 0; i < shards_.size(); ++i) open(i);
  }
}

RecordSplit::Place RecordSplit::find(std::int64_t sample) const {
  const auto behind =
      std::upper_bound(shards_.begin(), shards_.end(), sample,
                       [](std::int64_t number, const auto& shard) { return number < shard->first(); });
  const ShardFile& shard = **std::prev(behind);
  return {.shard = &shard, .record = sample - shard.first()};
}

}  // namespace trireme::data
