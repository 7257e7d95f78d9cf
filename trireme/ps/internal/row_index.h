#pragma once
// Row numbers by key: a hash table with open addressing and linear probing. An entry is 32 bits of the key's
// hash and the row's number, 8 of them to a cache line; the key itself is in the row, which a lookup reads
// next. The 32 bits also give the place of an entry, so growing and erasing touch no row. It is not part of
// replicated state. A value; one thread.

#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

namespace trireme::ps {

class RowIndex {
 public:
  using Row = std::uint32_t;
  using Hash = std::uint32_t;
  static constexpr Row kNone = UINT32_MAX;

  /// Not the hash that chose the partition: of that one some bits are the same for all keys here.
  static Hash hash(std::uint64_t key) {
    key = (key ^ key >> 30) * 0xbf58476d1ce4e5b9;
    key = (key ^ key >> 27) * 0x94d049bb133111eb;
    return static_cast<Hash>((key ^ key >> 31) >> 16);
  }

  void prefetch(Hash hash) const { __builtin_prefetch(&entries_[hash & mask_]); }
  /// The first row of this hash for which `is_it` holds; kNone where there is none.
  template <class IsIt>
  Row find(Hash hash, const IsIt& is_it) const {
    for (std::size_t at = hash & mask_;; at = (at + 1) & mask_) {
      const Entry entry = entries_[at];
      if (entry.row == kNone) return kNone;
      if (entry.hash == hash && is_it(entry.row)) return entry.row;
    }
  }
  /// A key that has no row.
  void insert(Hash hash, Row row) {
    if ((size_ + 1) * 4 > entries_.size() * 3) grow();
    ++size_;
    put({hash, row});
  }
  /// A row that is there.
  void erase(Hash hash, Row row) {
    std::size_t hole = place_of(hash, row);
    --size_;
    for (std::size_t at = (hole + 1) & mask_; entries_[at].row != kNone; at = (at + 1) & mask_) {
      // An entry that may be in the hole without being before its own place moves there.
      if (((at - entries_[at].hash) & mask_) < ((at - hole) & mask_)) continue;
      entries_[std::exchange(hole, at)] = entries_[at];
    }
    entries_[hole].row = kNone;
  }
  void renumber(Hash hash, Row from, Row to) { entries_[place_of(hash, from)].row = to; }

 private:
  struct Entry {
    Hash hash = 0;
    Row row = kNone;
  };

  std::size_t place_of(Hash hash, Row row) const {
    std::size_t at = hash & mask_;
    while (entries_[at].row != row) at = (at + 1) & mask_;
    return at;
  }
  void put(Entry entry) {
    std::size_t at = entry.hash & mask_;
    while (entries_[at].row != kNone) at = (at + 1) & mask_;
    entries_[at] = entry;
  }
  void grow() {
    std::vector<Entry> old(2 * entries_.size());
    old.swap(entries_);
    mask_ = entries_.size() - 1;
    for (const Entry& entry : old) {
      if (entry.row != kNone) put(entry);
    }
  }

  std::vector<Entry> entries_ = std::vector<Entry>(16);
  std::size_t mask_ = 15;
  std::size_t size_ = 0;
};

}  // namespace trireme::ps
