#include "trireme/checkpoint/shard_catalogue.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <tuple>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::checkpoint {
namespace {

using Entry = ShardCatalogue::Entry;

constexpr char kFieldEnd = '\t';

/// One line per shard: name, type, replicas, then per dim the global size, the offset and the size.
std::string line_of(const Shard& shard) {
  std::string line = shard.name;
  const auto add = [&](std::int64_t number) { line += kFieldEnd + std::to_string(number); };
  add(static_cast<int>(shard.tensor.scalar_type()));
  add(static_cast<int>(shard.replicas));
  for (std::size_t dim = 0; dim < shard.global_sizes.size(); ++dim) {
    add(shard.global_sizes[dim]);
    add(shard.offsets[dim]);
    add(shard.tensor.size(static_cast<std::int64_t>(dim)));
  }
  return line + '\n';
}

Entry entry_of(const std::string& line, int holder) {
  const std::vector<std::string> fields = split(line, kFieldEnd);
  const auto number = [&](std::size_t field) {
    std::int64_t result = 0;
    std::from_chars(fields[field].data(), fields[field].data() + fields[field].size(), result);
    return result;
  };
  Entry entry{.name = fields[0],
              .global_sizes = {},
              .type = static_cast<at::ScalarType>(number(1)),
              .box = {},
              .replicas = static_cast<Replicas>(number(2)),
              .holders = {holder}};
  for (std::size_t field = 3; field + 2 < fields.size(); field += 3) {
    entry.global_sizes.push_back(number(field));
    entry.box.offsets.push_back(number(field + 1));
    entry.box.sizes.push_back(number(field + 2));
  }
  return entry;
}

void check(const Shard& shard) {
  require(shard.tensor.defined(), "the shard '", shard.name, "' has no tensor");
  require(shard.name.find_first_of("\t\n") == std::string::npos, "the name '", shard.name,
          "' of a tensor holds a tab or a line break");
  require(lies_in(shard.box(), shard.global_sizes), "the shard ", describe(shard.box()), " of '", shard.name,
          "' does not lie in ", at::IntArrayRef(shard.global_sizes));
}

}  // namespace

std::uint64_t ShardCatalogue::Entry::bytes() const {
  return static_cast<std::uint64_t>(box.numel()) * c10::elementSize(type);
}

bool ShardCatalogue::Entry::is_held_by(int rank) const {
  return std::binary_search(holders.begin(), holders.end(), rank);
}

ShardCatalogue::ShardCatalogue(comm::Group group, const Shards& mine) {
  std::string lines;
  for (const Shard& shard : mine) {
    check(shard);
    lines += line_of(shard);
  }
  const std::vector<std::string> all = group.all_gather_text(lines);
  std::map<std::pair<std::string, Box>, Entry> found;
  for (int rank = 0; rank < group.size(); ++rank) {
    for (const std::string& line : split(all[static_cast<std::size_t>(rank)], '\n')) {
      if (line.empty()) continue;
      Entry entry = entry_of(line, rank);
      const auto [place, is_new] = found.try_emplace({entry.name, entry.box}, entry);
      if (is_new) continue;
      // check_alike compares entries: a shard with other sizes or another type stays a separate entry.
      if (place->second.global_sizes == entry.global_sizes && place->second.type == entry.type) {
        place->second.holders.push_back(rank);
      } else {
        entries_.push_back(std::move(entry));
      }
    }
  }
  for (auto& [key, entry] : found) entries_.push_back(std::move(entry));
  std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.name, a.box) < std::tie(b.name, b.box);
  });
  check_alike();
}

ShardCatalogue::ShardCatalogue(std::vector<Entry> entries) : entries_(std::move(entries)) {
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return std::tie(a.name, a.box) < std::tie(b.name, b.box); });
  check_alike();
}

void ShardCatalogue::check_alike() const {
  for (std::size_t i = 1; i < entries_.size(); ++i) {
    const bool by_rank = entries_[i - 1].holders.front() <= entries_[i].holders.front();
    const Entry& a = entries_[by_rank ? i - 1 : i];
    const Entry& b = entries_[by_rank ? i : i - 1];
    if (a.name != b.name) continue;
    require(a.global_sizes == b.global_sizes && a.type == b.type, "'", a.name, "' is ",
            at::IntArrayRef(a.global_sizes), " of type ", a.type, " on rank ", a.holders.front(), " and ",
            at::IntArrayRef(b.global_sizes), " of type ", b.type, " on rank ", b.holders.front());
  }
}

std::span<const Entry> ShardCatalogue::of(const std::string& name) const {
  const auto before = [](const Entry& entry, const std::string& other) { return entry.name < other; };
  const auto first = std::lower_bound(entries_.begin(), entries_.end(), name, before);
  auto last = first;
  while (last != entries_.end() && last->name == name) ++last;
  return {first, last};
}

void ShardCatalogue::check_complete() const {
  for (std::size_t begin = 0; begin < entries_.size();) {
    const std::span<const Entry> shards = of(entries_[begin].name);
    std::int64_t covered = 0;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      covered += shards[i].box.numel();
      for (std::size_t j = 0; j < i; ++j) {
        require(!overlap(shards[i].box, shards[j].box), "the shards ", describe(shards[j].box), " and ",
                describe(shards[i].box), " of '", shards[i].name, "' overlap");
      }
    }
    const std::int64_t numel = whole_box(shards[0].global_sizes).numel();
    require(covered == numel, "no rank holds ", numel - covered, " of the ", numel, " elements of '",
            shards[0].name, "'");
    begin += shards.size();
  }
}

Shard empty_shard(const ShardCatalogue::Entry& entry) {
  return {.name = entry.name,
          .global_sizes = entry.global_sizes,
          .offsets = entry.box.offsets,
          .tensor = at::empty(entry.box.sizes, at::TensorOptions(entry.type)),
          .replicas = entry.replicas};
}

std::vector<ShardWriter> share_out(const ShardCatalogue& catalogue, const std::vector<bool>& may_write) {
  const std::vector<Entry>& entries = catalogue.entries();
  std::vector<std::size_t> largest_first(entries.size());
  std::iota(largest_first.begin(), largest_first.end(), std::size_t{0});
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [&](std::size_t a, std::size_t b) { return entries[a].bytes() > entries[b].bytes(); });
  const auto writes = [&](int rank) { return bool{may_write[static_cast<std::size_t>(rank)]}; };
  std::vector<int> all(may_write.size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::uint64_t> load(may_write.size(), 0);
  std::vector<ShardWriter> writers(entries.size());
  for (const std::size_t i : largest_first) {
    const Entry& entry = entries[i];
    std::vector<int> able = entry.holders;
    if (entry.replicas == Replicas::kFirstCounts) able.resize(1);
    if (std::none_of(able.begin(), able.end(), writes)) able = all;
    std::erase_if(able, [&](int rank) { return !writes(rank); });
    require(!able.empty(), "no rank may write a checkpoint");
    const int writer = *std::min_element(able.begin(), able.end(), [&](int a, int b) {
      return load[static_cast<std::size_t>(a)] < load[static_cast<std::size_t>(b)];
    });
    load[static_cast<std::size_t>(writer)] += entry.bytes();
    const bool has_it = entry.replicas == Replicas::kEqual && entry.is_held_by(writer);
    writers[i] = {.writer = writer, .source = has_it ? writer : entry.holders.front()};
  }
  return writers;
}

}  // namespace trireme::checkpoint
