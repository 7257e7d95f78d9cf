#include "trireme/data/sampler.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::data {
namespace {

constexpr std::uint64_t kOrderKey = Random::key_of("sample order");
constexpr std::uint64_t kShardKey = Random::key_of("shard order");

}  // namespace

Slice slice_of(std::int64_t size, std::int64_t index, std::int64_t count) {
  require(size >= 0 && count >= 1 && index >= 0 && index < count, "there is no part ", index, " of ", count,
          " parts of ", size);
  const std::int64_t each = size / count;
  const std::int64_t longer = size % count;
  const std::int64_t begin = index * each + std::min(index, longer);
  return {begin, begin + each + (index < longer ? 1 : 0)};
}

Slice share_of(const Shares& shares, std::int64_t rank) {
  require(rank >= 0 && rank < std::ssize(shares), "there is no share ", rank, " of ", shares.size());
  const std::int64_t begin = std::accumulate(shares.begin(), shares.begin() + rank, std::int64_t{0});
  return {begin, begin + shares[static_cast<std::size_t>(rank)]};
}

Shares scaled_shares(const Shares& shares, std::int64_t size, std::int64_t microbatches) {
  constexpr std::int64_t kMinOfMicrobatch = 2;
  const std::int64_t parts = std::ssize(shares) * microbatches,
                     least = microbatches * std::min(kMinOfMicrobatch, size / parts),
                     whole = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  require(size >= parts, size, " samples are none for each of ", parts, " micro-batches");
  Shares result;
  std::int64_t before = 0, begin = 0;
  for (const std::int64_t share : shares) {
    before += share;
    const std::int64_t end = before * size / whole;
    result.push_back(std::max(end - begin, least));
    begin = end;
  }
  // The largest shares give up the samples that raised others to `least`.
  for (std::int64_t over = std::accumulate(result.begin(), result.end(), -size); over > 0; --over)
    --*std::ranges::max_element(result);
  return result;
}

std::vector<std::int64_t> balanced_part(std::span<const double> costs, std::int64_t index,
                                        std::int64_t count) {
  const auto size = std::ssize(costs);
  const std::int64_t mine = slice_of(size, index, count).size();
  std::vector<std::int64_t> dearest_first(costs.size());
  std::iota(dearest_first.begin(), dearest_first.end(), std::int64_t{0});
  const auto cost_of = [&](std::int64_t place) { return costs[static_cast<std::size_t>(place)]; };
  std::stable_sort(dearest_first.begin(), dearest_first.end(),
                   [&](std::int64_t a, std::int64_t b) { return cost_of(a) > cost_of(b); });
  using Part = std::pair<double, std::int64_t>;  // cost so far, number
  std::priority_queue<Part, std::vector<Part>, std::greater<>> open;
  std::vector<std::int64_t> room;
  for (std::int64_t part = 0; part < count; ++part) {
    room.push_back(slice_of(size, part, count).size());
    if (room.back() > 0) open.emplace(0.0, part);
  }
  std::vector<std::int64_t> places;
  for (const std::int64_t place : dearest_first) {
    const auto [cost, part] = open.top();
    open.pop();
    if (part == index) places.push_back(place);
    if (--room[static_cast<std::size_t>(part)] > 0) open.emplace(cost + cost_of(place), part);
    if (std::ssize(places) == mine) break;
  }
  std::sort(places.begin(), places.end());
  return places;
}

std::int64_t EpochOrder::operator[](std::int64_t place) const {
  require(place >= 0 && place < num_samples_, "there is no place ", place, " in an epoch of ", num_samples_,
          " samples");
  if (windows_.empty()) return place;
  const auto window = std::upper_bound(windows_.begin(), windows_.end(), place,
                                       [](std::int64_t at, const Window& one) { return at < one.end; });
  const std::int64_t begin = window->end - window->within.size();
  const std::int64_t sample = window->within[place - begin];
  const auto from = shards_.begin() + static_cast<std::ptrdiff_t>(window->first_shard);
  const auto to = window + 1 == windows_.end()
                      ? shards_.end()
                      : shards_.begin() + static_cast<std::ptrdiff_t>(window[1].first_shard);
  const auto shard =
      std::upper_bound(from, to, sample, [](std::int64_t at, const Shard& one) { return at < one.end; });
  return shard->first + sample - (shard == from ? 0 : shard[-1].end);
}

Sampler::Sampler(std::int64_t num_samples, OrderOptions order)
    : num_samples_(num_samples), order_(std::move(order)) {
  require(num_samples >= 1, "there are no samples to draw from");
  std::vector<std::int64_t>& ends = order_.shard_ends;
  if (ends.empty() || order_.open_shards == 0) ends = {num_samples};
  require(order_.open_shards >= 0, "samples are mixed among at least one shard, not ", order_.open_shards);
  require(ends.back() == num_samples, "the shards end at sample ", ends.back(), ", the data set at ",
          num_samples);
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const std::int64_t begin = i == 0 ? 0 : ends[i - 1];
    require(begin < ends[i], "shard ", i, " ends at sample ", ends[i], ", where it begins at ", begin);
  }
}

EpochOrder Sampler::order_of(std::uint64_t epoch) const {
  EpochOrder order;
  order.num_samples_ = num_samples_;
  if (order_.order == Order::kSequential) return order;
  const std::vector<std::int64_t>& ends = order_.shard_ends;
  const auto num_shards = std::ssize(ends);
  const std::int64_t open = order_.open_shards == 0 ? num_shards : std::min(order_.open_shards, num_shards);
  const Permutation of_shards(num_shards, Random(order_.seed, kShardKey, epoch));
  std::int64_t done = 0;
  for (std::int64_t first = 0; first < num_shards; first += open) {
    const std::size_t first_shard = order.shards_.size();
    std::int64_t in_window = 0;
    for (std::int64_t i = first; i < std::min(first + open, num_shards); ++i) {
      const auto shard = static_cast<std::size_t>(of_shards[i]);
      const std::int64_t begin = shard == 0 ? 0 : ends[shard - 1];
      in_window += ends[shard] - begin;
      order.shards_.push_back({.first = begin, .end = in_window});
    }
    done += in_window;
    order.windows_.push_back(
        {.end = done,
         .first_shard = first_shard,
         .within = Permutation(in_window, Random(order_.seed, kOrderKey, epoch, first))});
  }
  return order;
}

}  // namespace trireme::data
