#include "trireme/ps/internal/row_store.h"

namespace trireme::ps {

RowStore::Row RowStore::append(std::uint64_t key) {
  const Row row = size();
  pages_.append();
  head(row).key = key;
  index_.insert(RowIndex::hash(key), row);
  return row;
}

void RowStore::erase(Row row) {
  const Row last = size() - 1;
  index_.erase(RowIndex::hash(std::as_const(*this).head(row).key), row);
  if (row != last) {
    std::memcpy(pages_.write(row), pages_.read(last), pages_.row_bytes());
    index_.renumber(RowIndex::hash(std::as_const(*this).head(row).key), last, row);
  }
  pages_.remove_last();
  if (size() == 0) hand_ = {};  // an empty store equals a new one
}

void RowStore::begin_round_at_end() {
  if (hand_.row >= size()) hand_ = {.row = 0, .most_rows = size()};
}

void RowStore::sweep(std::uint64_t steps, std::uint32_t clock, std::uint32_t evict_after) {
  hand_.most_rows = std::max(hand_.most_rows, size());
  const std::uint64_t share = divide_up(hand_.most_rows * steps, evict_after);
  for (std::uint64_t i = std::min<std::uint64_t>(share, size()); i > 0; --i) {
    begin_round_at_end();
    if (is_expired(std::as_const(*this).head(hand_.row), clock, evict_after))
      erase(hand_.row);
    else
      ++hand_.row;
  }
}

void RowStore::evict_one(std::uint32_t clock, std::uint32_t evict_after) {
  while (true) {
    begin_round_at_end();
    const Row row = hand_.row++;
    const RowHead& seen = std::as_const(*this).head(row);
    if (seen.is_marked == 0 || is_expired(seen, clock, evict_after)) return erase(row);
    head(row).is_marked = 0;
  }
}

bool RowStore::install(std::span<const std::byte> bytes, const Hand& hand) {
  const std::size_t row_bytes = pages_.row_bytes();
  if (bytes.size() % row_bytes != 0 || size() + bytes.size() / row_bytes >= kNone) return false;
  for (; !bytes.empty(); bytes = bytes.subspan(row_bytes)) {
    std::uint64_t key = 0;
    std::memcpy(&key, bytes.data(), sizeof key);
    if (find(key) != kNone) return false;
    std::memcpy(pages_.write(append(key)), bytes.data(), row_bytes);
  }
  hand_ = hand;
  return true;
}

}  // namespace trireme::ps
