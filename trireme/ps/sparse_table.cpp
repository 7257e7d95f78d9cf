#include "trireme/ps/internal/sparse_table.h"

#include <algorithm>

#include "trireme/base/random.h"
#include "trireme/ps/internal/hash.h"

namespace trireme::ps {
namespace {

constexpr std::size_t kPartBytes = 1 << 20;
constexpr std::uint32_t kMostCount = (std::uint32_t{1} << 31) - 1;  // limit of the field in a row's head
constexpr std::uint32_t kMostDraws = 1024;                          // for one key of one push
constexpr std::uint64_t kAdmissionStream = 0xad3155;  // other random numbers than for initial values

std::uint32_t in_row(WorkerClock clock) { return static_cast<std::uint32_t>(clock); }

/// The header before the rows of a part.
struct PartHead {
  std::uint32_t of_candidates = 0;
  RowStore::Hand hand;
};

}  // namespace

SparseTable::SparseTable(const TableSpec& spec)
    : spec_(spec),
      rule_(optimizer_rule(spec.optimizer.name)),
      row_elements_(spec.rows.elements),
      rows_(empty_rows()),
      candidates_(0) {}

void SparseTable::write_first_values(std::uint64_t key, std::span<float> values) const {
  for (std::uint32_t i = 0; i < values.size(); ++i) values[i] = initial_value(spec_, key, i);
}

void SparseTable::write_first_state(std::span<float> state) const {
  std::fill(state.begin(), state.end(), rule_.first_state(spec_.optimizer));
}

void SparseTable::make_room(RowStore& store, std::uint32_t clock) const {
  if (store.size() >= spec_.rows.most_in_partition()) store.evict_one(clock, spec_.rows.evict_after);
}

SparseTable::Row SparseTable::create(std::uint64_t key, std::uint32_t clock) {
  make_room(rows_, clock);
  const Row row = rows_.append(key);
  const std::span<float> floats = rows_.floats(row);
  write_first_values(key, floats.first(row_elements_));
  write_first_state(floats.subspan(row_elements_));
  return row;
}

/// Whether one of the occurrences from `before` + 1 to `after` admits the key.
bool SparseTable::wins(std::uint64_t key, std::uint32_t before, std::uint32_t after) const {
  const double probability = spec_.rows.admit_probability;
  const std::uint32_t first = std::max(before + 1, spec_.rows.admit_after);
  if (first > after || probability >= 1) return first <= after;
  const std::uint32_t last = first + std::min(after - first, kMostDraws - 1);
  for (std::uint32_t n = first; n <= last; ++n) {
    if (Random(spec_.seed, key, n, kAdmissionStream).uniform() < probability) return true;
  }
  return false;
}

bool SparseTable::admits(std::uint64_t key, std::uint32_t count, std::uint32_t clock) {
  if (spec_.rows.admit_after == 1 && spec_.rows.admit_probability >= 1) return true;
  Row row = candidates_.find(key);
  if (row != RowStore::kNone && RowStore::is_expired(candidates_.head(row), clock, spec_.rows.evict_after)) {
    candidates_.erase(row);
    row = RowStore::kNone;
  }
  const std::uint32_t before = row == RowStore::kNone ? 0 : candidates_.head(row).count;
  const auto after =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(std::uint64_t{before} + count, kMostCount));
  if (wins(key, before, after)) {
    if (row != RowStore::kNone) candidates_.erase(row);
    return true;
  }
  if (row == RowStore::kNone) {
    make_room(candidates_, clock);
    row = candidates_.append(key);
  }
  RowHead& head = candidates_.head(row);
  head.is_marked = before > 0 ? 1 : 0;
  head.count = after;
  head.last_clock = clock;
  return false;
}

void SparseTable::push(const RowBatch& batch, double lr, WorkerClock worker_clock) {
  const std::uint32_t clock = in_row(worker_clock);
  const std::size_t row_bytes = rows_.pages().row_bytes();
  OptimizerSpec optimizer = with_defaults(spec_.optimizer);
  if (lr != kTableRate) optimizer.lr = lr;
  const auto key_at = [&](std::size_t i) { return batch.key(i); };
  rows_.visit(batch.size(), row_bytes, key_at, [&](std::size_t i, Row row) {
    if (row != RowStore::kNone && RowStore::is_expired(rows_.head(row), clock, spec_.rows.evict_after)) {
      rows_.erase(row);
      row = RowStore::kNone;
    }
    if (row == RowStore::kNone) {
      if (!admits(batch.key(i), batch.count(i), clock)) return;
      row = create(batch.key(i), clock);
    }
    RowHead& head = rows_.head(row);
    head.is_marked = head.count > 0 ? 1 : 0;
    if (head.count < kMostCount) ++head.count;
    head.last_clock = clock;
    const std::span<float> floats = rows_.floats(row);
    rule_.update(optimizer, {.values = floats.first(row_elements_),
                             .gradient = batch.row(i),
                             .state = floats.subspan(row_elements_),
                             .step = head.count});
  });
}

void SparseTable::assign(const RowBatch& batch, WorkerClock worker_clock) {
  const std::uint32_t clock = in_row(worker_clock);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    Row row = rows_.find(batch.key(i));
    if (row != RowStore::kNone && RowStore::is_expired(rows_.head(row), clock, spec_.rows.evict_after)) {
      rows_.erase(row);
      row = RowStore::kNone;
    }
    if (row == RowStore::kNone) {
      row = create(batch.key(i), clock);
      if (const Row candidate = candidates_.find(batch.key(i)); candidate != RowStore::kNone)
        candidates_.erase(candidate);
    }
    RowHead& head = rows_.head(row);
    head.count = 0;
    head.last_clock = clock;
    const std::span<float> floats = rows_.floats(row);
    const std::span<const float> values = batch.row(i);
    std::copy(values.begin(), values.end(), floats.begin());
    write_first_state(floats.subspan(row_elements_));
  }
}

void SparseTable::restore(const RestoredRows& restored, WorkerClock worker_clock) {
  if (restored.begins()) {
    rows_ = empty_rows();
    candidates_ = RowStore(0);
  }
  const std::uint32_t clock = in_row(worker_clock);
  RowStore& store = restored.of_candidates() ? candidates_ : rows_;
  RowStore& other = restored.of_candidates() ? rows_ : candidates_;
  for (std::size_t i = 0; i < restored.size(); ++i) {
    RowHead saved = restored.head(i);
    saved.last_clock = clock - saved.last_clock;
    if (const Row row = other.find(saved.key); row != RowStore::kNone) other.erase(row);
    Row row = store.find(saved.key);
    if (row == RowStore::kNone) {
      make_room(store, clock);
      row = store.append(saved.key);
    }
    store.head(row) = saved;
    restored.copy_floats(i, store.floats(row));
  }
}

void SparseTable::read(const KeyBatch& keys, WorkerClock clock, std::span<float> out) const {
  const std::size_t num_bytes = sizeof(RowHead) + row_elements_ * sizeof(float);
  const auto key_at = [&](std::size_t i) { return keys.key(i); };
  rows_.visit(keys.size(), num_bytes, key_at, [&](std::size_t i, Row row) {
    const std::span<float> values = out.subspan(i * row_elements_, row_elements_);
    if (row == RowStore::kNone ||
        RowStore::is_expired(rows_.head(row), in_row(clock), spec_.rows.evict_after))
      return write_first_values(keys.key(i), values);
    std::copy_n(rows_.floats(row).begin(), row_elements_, values.begin());
  });
}

void SparseTable::advance(WorkerClock before, WorkerClock now) {
  const std::uint64_t evict_after = spec_.rows.evict_after;
  if (evict_after == 0) return;
  const std::uint64_t steps = std::min<std::uint64_t>(now - before, evict_after);
  for (RowStore* store : {&rows_, &candidates_}) store->sweep(steps, in_row(now), spec_.rows.evict_after);
}

std::vector<SparseTable::Part> SparseTable::snapshot() const {
  std::vector<Part> parts;
  for (const RowStore* store : {&rows_, &candidates_}) {
    std::size_t room = 0;
    for (std::size_t page = 0; page < store->pages().num_pages(); ++page) {
      const wire::Buffer shared = store->pages().lease(page);
      if (room < shared.size()) {
        parts.push_back({.pages = {}, .hand = store->hand(), .of_candidates = store == &candidates_});
        room = kPartBytes;
      }
      parts.back().pages.push_back(shared);
      room -= std::min(room, shared.size());
    }
  }
  return parts;
}

std::vector<wire::Buffer> SparseTable::lease(bool of_candidates) const {
  const RowPages& pages = (of_candidates ? candidates_ : rows_).pages();
  std::vector<wire::Buffer> leased;
  for (std::size_t page = 0; page < pages.num_pages(); ++page) leased.push_back(pages.lease(page));
  return leased;
}

std::vector<std::byte> SparseTable::Part::flat() const {
  std::size_t size = sizeof(PartHead);
  for (const wire::Buffer& page : pages) size += page.size();
  std::vector<std::byte> bytes(size);
  const PartHead head = {of_candidates ? 1U : 0U, hand};
  std::memcpy(bytes.data(), &head, sizeof head);
  std::size_t at = sizeof head;
  for (const wire::Buffer& page : pages) {
    std::memcpy(bytes.data() + at, page.bytes().data(), page.size());
    at += page.size();
  }
  return bytes;
}

bool SparseTable::install(std::span<const std::byte> bytes) {
  PartHead head;
  if (bytes.size() < sizeof head) return false;
  std::memcpy(&head, bytes.data(), sizeof head);
  if (head.of_candidates > 1) return false;
  return (head.of_candidates == 1 ? candidates_ : rows_).install(bytes.subspan(sizeof head), head.hand);
}

std::uint64_t SparseTable::digest(std::uint64_t seed) const {
  std::uint64_t digest = seed;
  for (const RowStore* store : {&rows_, &candidates_}) {
    const std::uint32_t numbers[] = {store->size(), store->hand().row, store->hand().most_rows};
    digest = hash_bytes(std::as_bytes(std::span(numbers)), digest);
    for (std::size_t page = 0; page < store->pages().num_pages(); ++page)
      digest = hash_bytes(store->pages().bytes(page), digest);
  }
  return digest;
}

}  // namespace trireme::ps
