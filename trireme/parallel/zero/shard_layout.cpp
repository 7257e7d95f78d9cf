#include "trireme/parallel/zero/internal/shard_layout.h"

#include <algorithm>
#include <utility>

#include "trireme/base/rounding.h"

namespace trireme::parallel {
namespace {

constexpr std::int64_t kLineBytes = 64;

/// Concatenates the parameters and splits the result evenly.
ShardBucket cut_anywhere(std::vector<ShardSlot> slots, int num_ranks, std::int64_t line) {
  ShardBucket bucket;
  std::int64_t end = 0;
  for (ShardSlot& slot : slots) {
    slot.begin = end;
    end = round_up(end + slot.numel, line);
  }
  bucket.part = round_up(divide_up(end, std::int64_t{num_ranks}), line);
  bucket.slots = std::move(slots);
  return bucket;
}

/// Greedy longest-processing-time assignment.
ShardBucket cut_between_tensors(std::vector<ShardSlot> slots, int num_ranks, std::int64_t line) {
  std::ranges::stable_sort(slots, std::ranges::greater(), &ShardSlot::numel);
  std::vector<std::int64_t> filled(static_cast<std::size_t>(num_ranks), 0);
  std::vector<std::size_t> rank_of;
  for (ShardSlot& slot : slots) {
    const auto least = std::ranges::min_element(filled);
    rank_of.push_back(static_cast<std::size_t>(least - filled.begin()));
    slot.begin = *least;
    *least = round_up(*least + slot.numel, line);
  }
  ShardBucket bucket;
  bucket.part = *std::ranges::max_element(filled);
  for (std::size_t i = 0; i < slots.size(); ++i)
    slots[i].begin += static_cast<std::int64_t>(rank_of[i]) * bucket.part;
  std::ranges::sort(slots, {}, &ShardSlot::begin);
  bucket.slots = std::move(slots);
  return bucket;
}

/// The parameters of each use, in their order.
std::vector<std::pair<ShardUse, std::vector<std::size_t>>> by_use(const std::vector<Parameter>& parameters,
                                                                  std::span<const std::size_t> order,
                                                                  const ShardLayout& layout) {
  std::vector<std::pair<ShardUse, std::vector<std::size_t>>> kinds;
  for (const std::size_t number : order) {
    const ShardUse use = layout.use_of(parameters[number]);
    auto kind = std::ranges::find(kinds, use, [](const auto& known) { return known.first; });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {use, {}});
    kind->second.push_back(number);
  }
  return kinds;
}

/// Elements in a cache line, for the smaller dtype of the parameter and its working copy.
std::int64_t line_of(const at::Tensor& parameter, const ShardUse& use) {
  std::int64_t element_bytes = parameter.element_size();
  if (use.working_type)
    element_bytes = std::min(element_bytes, static_cast<std::int64_t>(c10::elementSize(*use.working_type)));
  return std::max<std::int64_t>(1, kLineBytes / element_bytes);
}

/// The same parameters in order, in as few buckets as the limit allows.
std::vector<std::vector<std::size_t>> within(std::int64_t most_bytes, const std::vector<std::size_t>& members,
                                             const std::vector<Parameter>& parameters) {
  std::vector<std::vector<std::size_t>> buckets;
  std::int64_t filled = 0;
  for (const std::size_t member : members) {
    const auto bytes = static_cast<std::int64_t>(parameters[member].tensor.nbytes());
    if (buckets.empty() || filled + bytes > most_bytes) {
      buckets.emplace_back();
      filled = 0;
    }
    buckets.back().push_back(member);
    filled += bytes;
  }
  return buckets;
}

ShardBucket bucket_of(const std::vector<Parameter>& parameters, const std::vector<std::size_t>& numbers,
                      const ShardUse& use, const ShardLayout& layout) {
  std::vector<ShardSlot> slots;
  for (const std::size_t number : numbers)
    slots.push_back({.parameter = number, .begin = 0, .numel = parameters[number].tensor.numel()});
  const std::int64_t line = line_of(parameters[numbers.front()].tensor, use);
  ShardBucket bucket = layout.cut == ShardCut::kAnywhere
                           ? cut_anywhere(std::move(slots), layout.num_ranks, line)
                           : cut_between_tensors(std::move(slots), layout.num_ranks, line);
  bucket.type = parameters[numbers.front()].tensor.scalar_type();
  bucket.use = use;
  return bucket;
}

}  // namespace

ShardLayout shard_layout(const DataParallelOptions& options, int num_ranks, const BucketLimits& limits) {
  const auto bytes = [](double mib) { return static_cast<std::int64_t>(mib * 0x1p20); };
  return {.num_ranks = num_ranks,
          .first_bucket_bytes = bytes(options.first_bucket_mib),
          .bucket_bytes = bytes(options.bucket_mib),
          .most_bytes = limits.most_bytes};
}

std::vector<ShardBucket> lay_out_shards(const std::vector<Parameter>& parameters,
                                        std::span<const std::size_t> order, const ShardLayout& layout) {
  std::vector<ShardBucket> buckets;
  for (const auto& [use, numbers] : by_use(parameters, order, layout)) {
    for (const auto& members :
         assign_buckets(parameters, numbers, layout.first_bucket_bytes, layout.bucket_bytes)) {
      for (const auto& some : within(layout.most_bytes, members, parameters))
        buckets.push_back(bucket_of(parameters, some, use, layout));
    }
  }
  std::vector<std::size_t> place(parameters.size());
  for (std::size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  std::ranges::stable_sort(buckets, {}, [&](const ShardBucket& bucket) {
    const auto place_of = [&](const ShardSlot& slot) { return place[slot.parameter]; };
    return place_of(*std::ranges::max_element(bucket.slots, {}, place_of));
  });
  return buckets;
}

std::vector<ShardPiece> pieces_of_rank(const std::vector<ShardBucket>& buckets, int rank) {
  std::vector<ShardPiece> pieces;
  for (std::size_t number = 0; number < buckets.size(); ++number) {
    const std::int64_t part = buckets[number].part, part_begin = part * rank;
    for (const ShardSlot& slot : buckets[number].slots) {
      const std::int64_t begin = std::max(slot.begin, part_begin),
                         end = std::min(slot.begin + slot.numel, part_begin + part);
      if (begin >= end) continue;
      pieces.push_back({.parameter = slot.parameter,
                        .bucket = number,
                        .place = begin - part_begin,
                        .begin = begin - slot.begin,
                        .numel = end - begin});
    }
  }
  return pieces;
}

}  // namespace trireme::parallel
