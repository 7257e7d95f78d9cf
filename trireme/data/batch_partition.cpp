#include "trireme/data/internal/batch_partition.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "trireme/base/error.h"

namespace trireme::data {

void BatchStream::assign_shares(std::uint64_t /*from*/, const Shares& /*shares*/) {
  throw InvalidArgument(
      "data.balance = \"dynamic\": shares of this kind of data cannot change during a run; take \"count\", "
      "or "
      "override BatchStream::assign_shares");
}

void BatchStream::change_ramp(std::uint64_t /*from*/, const BatchRamp& /*ramp*/) {
  throw InvalidArgument(
      "train.batch_ramp_by = \"noise\": the batches of this kind of data cannot change during a run; take "
      "\"steps\", or override BatchStream::change_ramp");
}

Shares equal_shares(const StreamOptions& options) {
  const std::int64_t each = options.num_microbatches, parts = each * options.world_size;
  Shares shares;
  for (std::int64_t rank = 0; rank < options.world_size; ++rank) {
    const std::int64_t begin = slice_of(options.global_batch, rank * each, parts).begin;
    shares.push_back(slice_of(options.global_batch, (rank + 1) * each - 1, parts).end - begin);
  }
  return shares;
}

void BatchPartition::set(std::uint64_t from, const Shares& shares, std::uint64_t consumed) {
  require(options_.balance == Balance::kDynamic, "shares of batches change only with Balance::kDynamic");
  require(from >= consumed, "step ", from, " cannot get other shares: ", consumed, " have been handed over");
  require(std::ssize(shares) == options_.world_size, "there are shares for ", shares.size(), " of ",
          options_.world_size, " ranks");
  const std::int64_t sum = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  require(sum == options_.global_batch, "the shares of ranks add up to ", sum, " of the batch's ",
          options_.global_batch, " samples");
  for (const std::int64_t share : shares) {
    require(share >= options_.num_microbatches, "a rank's share of ", share,
            " samples is no sample for each of ", options_.num_microbatches, " micro-batches");
  }
  changes_.erase(changes_.lower_bound(from), changes_.end());
  changes_[from] = std::make_shared<const Shares>(shares);
}

BatchPartition::SharesInUse BatchPartition::at(std::uint64_t step) const {
  const auto later = changes_.upper_bound(step);
  return later == changes_.begin() ? nullptr : std::prev(later)->second;
}

std::int64_t BatchPartition::share(std::uint64_t step) const {
  const SharesInUse dealt = at(step);
  return (dealt ? *dealt : equal_shares(options_))[static_cast<std::size_t>(options_.rank)];
}

void BatchPartition::forget_before(std::uint64_t step) {
  const auto later = changes_.upper_bound(step);
  if (later != changes_.begin()) changes_.erase(changes_.begin(), std::prev(later));
}

Slice BatchPartition::slice(const SharesInUse& dealt, const BatchPlace& batch, std::int64_t part) const {
  const std::int64_t each = options_.num_microbatches;
  if (!dealt || batch.size != batch.full)
    return slice_of(batch.size, options_.rank * each + part, options_.world_size * each);
  const bool is_whole = batch.full == options_.global_batch;
  const Slice mine = share_of(is_whole ? *dealt : scaled_shares(*dealt, batch.full, each), options_.rank),
              of_mine = slice_of(mine.size(), part, each);
  return {mine.begin + of_mine.begin, mine.begin + of_mine.end};
}

}  // namespace trireme::data
