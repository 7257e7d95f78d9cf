#include "trireme/parallel/data/internal/slice_order.h"

#include <algorithm>

namespace trireme::parallel {

std::uint64_t SliceOrder::choose() {
  const auto known_end = here_.lower_bound(num_known_);
  // The first one if several are equal.
  const auto first = std::min_element(here_.begin(), known_end, [](const auto& one, const auto& other) {
    return one.second.need < other.second.need;
  });
  return first != known_end ? first->first : num_known_++;
}

SliceOrder::Slice SliceOrder::take(std::uint64_t bucket) {
  const auto found = here_.find(bucket);
  Bucket& its = found->second;
  const Slice slice{
      .bucket = bucket, .begin = its.taken, .numel = std::min(its.slice_numel, its.numel - its.taken)};
  its.taken += slice.numel;
  if (its.taken == its.numel) here_.erase(found);
  return slice;
}

int SliceOrder::num_here() const {
  if (num_added_ <= num_known_) return 0;
  return static_cast<int>(std::min<std::uint64_t>(num_added_ - num_known_, kWindow));
}

void SliceOrder::learn(std::uint64_t first, int num_everywhere) {
  num_known_ = std::max(num_known_, first + static_cast<std::uint64_t>(num_everywhere));
}

}  // namespace trireme::parallel
