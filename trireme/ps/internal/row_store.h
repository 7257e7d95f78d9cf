#pragma once
// Rows by key: an index, and pages of rows [key, clock, count, mark | floats] that are close together.
// Erasing moves the last row into the gap. So a store's bytes are those of rows 0 to size() - 1 and of its
// hand, and follow from its operations, on every replica. The hand goes around the rows and finds those to
// evict (CLOCK: Corbato 1968). One thread.

#include <array>
#include <cstdint>
#include <span>

#include "trireme/ps/internal/row_index.h"
#include "trireme/ps/internal/row_pages.h"

namespace trireme::ps {

struct RowHead {
  std::uint64_t key = 0;
  std::uint32_t last_clock = 0;     ///< of its last push, modulo 2^32
  std::uint32_t count : 31 = 0;     ///< of a row: its updates; of a candidate: how often it was named
  std::uint32_t is_marked : 1 = 0;  ///< pushed again since the hand came by
};
static_assert(sizeof(RowHead) == 16);

class RowStore {
 public:
  using Row = RowIndex::Row;
  static constexpr Row kNone = RowIndex::kNone;

  explicit RowStore(std::size_t num_floats)
      : num_floats_(num_floats), pages_(sizeof(RowHead) + num_floats * sizeof(float)) {}

  std::uint32_t size() const { return pages_.size(); }
  const RowHead& head(Row row) const { return *reinterpret_cast<const RowHead*>(pages_.read(row)); }
  RowHead& head(Row row) { return *reinterpret_cast<RowHead*>(pages_.write(row)); }
  std::span<const float> floats(Row row) const {
    return {reinterpret_cast<const float*>(pages_.read(row) + sizeof(RowHead)), num_floats_};
  }
  std::span<float> floats(Row row) {
    return {reinterpret_cast<float*>(pages_.write(row) + sizeof(RowHead)), num_floats_};
  }

  Row find(std::uint64_t key) const {
    return index_.find(RowIndex::hash(key), [&](Row row) { return head(row).key == key; });
  }
  /// Finds many keys, each other than the rest: use(i, row or kNone) for i = 0, 1, ..., count - 1, which may
  /// append and erase rows. Memory is asked for a block ahead: of a row, its first `num_bytes`.
  template <class KeyAt, class Use>
  void visit(std::size_t count, std::size_t num_bytes, const KeyAt& key_at, const Use& use) const;

  /// Of a key that has none.
  Row append(std::uint64_t key);
  void erase(Row row);

  /// A row that was last pushed more than `evict_after` steps ago is expired; 0: never.
  static bool is_expired(const RowHead& head, std::uint32_t clock, std::uint32_t evict_after) {
    return evict_after > 0 && clock - head.last_clock > evict_after;
  }
  /// So many steps have ended: the hand visits their share of the rows and erases expired ones. It goes
  /// around in evict_after steps, so an expired row is erased within as many again.
  void sweep(std::uint64_t steps, std::uint32_t clock, std::uint32_t evict_after);
  /// The hand moves to the first row without a push since its last visit, and erases it.
  void evict_one(std::uint32_t clock, std::uint32_t evict_after);

  const RowPages& pages() const { return pages_; }
  struct Hand {
    Row row = 0;        ///< where it is; after the last row it begins again
    Row most_rows = 0;  ///< that there were since it began: a round is so long
  };
  const Hand& hand() const { return hand_; }
  /// Takes rows of another store at the end, and its hand. Whether they may be such rows.
  bool install(std::span<const std::byte> bytes, const Hand& hand);

 private:
  void begin_round_at_end();

  static constexpr std::size_t kBlock = 32;
  static constexpr std::size_t kMostPrefetched = 512;  // the processor itself prefetches the rest of a long
                                                       // row

  std::size_t num_floats_;
  RowPages pages_;
  RowIndex index_;
  Hand hand_;
};

template <class KeyAt, class Use>
void RowStore::visit(std::size_t count, std::size_t num_bytes, const KeyAt& key_at, const Use& use) const {
  constexpr std::size_t kLine = 64;
  num_bytes = std::min(num_bytes, kMostPrefetched);
  std::array<RowIndex::Hash, kBlock> hashes{};
  std::array<Row, kBlock> rows{};
  for (std::size_t first = 0; first < count; first += kBlock) {
    const std::size_t num = std::min(count - first, kBlock);
    for (std::size_t i = 0; i < num; ++i) {
      hashes[i] = RowIndex::hash(key_at(first + i));
      index_.prefetch(hashes[i]);
    }
    for (std::size_t i = 0; i < num; ++i) {
      rows[i] = index_.find(hashes[i], [](Row) { return true; });  // nearly always the right one
      if (rows[i] == kNone) continue;
      const std::byte* row = pages_.read(rows[i]);
      for (std::size_t at = 0; at < num_bytes + kLine - 1; at += kLine) __builtin_prefetch(row + at);
    }
    for (std::size_t i = 0; i < num; ++i) {
      const std::uint64_t key = key_at(first + i);
      const bool is_right = rows[i] == kNone || (rows[i] < size() && head(rows[i]).key == key);
      use(first + i, is_right ? rows[i] : find(key));
    }
  }
}

}  // namespace trireme::ps
