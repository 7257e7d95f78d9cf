// Rows by key, compared with a slow map, and message bodies with rows.

#include "trireme/ps/internal/row_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <unordered_map>

#include "trireme/base/random.h"
#include "trireme/ps/internal/row_batch.h"

namespace trireme::ps {
namespace {

constexpr std::size_t kFloats = 5;

/// Keys, some of which have the same 32 bits of hash.
std::vector<std::uint64_t> keys_that_collide(std::size_t num_pairs) {
  std::unordered_map<RowIndex::Hash, std::uint64_t> seen;
  std::vector<std::uint64_t> keys;
  for (std::uint64_t key = 0; keys.size() < 2 * num_pairs; ++key) {
    const auto [found, is_new] = seen.try_emplace(RowIndex::hash(key), key);
    if (is_new) continue;
    keys.push_back(found->second);
    keys.push_back(key);
  }
  return keys;
}

TEST(RowStore, EqualsAMapAfterRandomOperations) {
  Random random(1);
  std::vector<std::uint64_t> keys = keys_that_collide(3);
  while (keys.size() < 3000) keys.push_back(random.bits());
  keys.push_back(0);
  keys.push_back(UINT64_MAX);
  RowStore store(kFloats);
  std::unordered_map<std::uint64_t, float> expected;
  std::size_t most = 0;
  for (int i = 0; i < 60'000; ++i) {
    // Alternates between phases of growth and shrinking.
    const bool grows = i / 10'000 % 2 == 0;
    const std::uint64_t key = keys[random.below(keys.size())];
    const RowStore::Row row = store.find(key);
    ASSERT_EQ(row != RowStore::kNone, expected.contains(key)) << key;
    if (row != RowStore::kNone && random.below(8) < (grows ? 1U : 7U)) {
      store.erase(row);
      expected.erase(key);
    } else if (row != RowStore::kNone || grows) {
      const auto value = static_cast<float>(i);
      for (float& one : store.floats(row == RowStore::kNone ? store.append(key) : row)) one = value;
      expected[key] = value;
    }
    most = std::max(most, expected.size());
    ASSERT_EQ(store.size(), expected.size());
  }
  EXPECT_GT(most, 2000U);
  std::sort(keys.begin(), keys.end());
  std::size_t num_found = 0;
  store.visit(
      keys.size(), 64, [&](std::size_t i) { return keys[i]; },
      [&](std::size_t i, RowStore::Row row) {
        ASSERT_EQ(row != RowStore::kNone, expected.contains(keys[i])) << keys[i];
        if (row == RowStore::kNone) return;
        ++num_found;
        EXPECT_EQ(store.head(row).key, keys[i]);
        for (const float value : std::as_const(store).floats(row)) EXPECT_EQ(value, expected.at(keys[i]));
      });
  EXPECT_EQ(num_found, expected.size());
}

TEST(RowStore, RowsMayChangeDuringVisit) {
  RowStore store(kFloats);
  std::vector<std::uint64_t> keys;
  for (std::uint64_t key = 0; key < 500; ++key) {
    keys.push_back(key);
    if (key % 2 == 0) store.append(key);
  }
  // Each existing key erases the row seven places later. Each missing key is added.
  std::size_t num_wrong = 0;
  std::unordered_map<std::uint64_t, bool> there;
  for (const std::uint64_t key : keys) there[key] = key % 2 == 0;
  store.visit(
      keys.size(), 64, [&](std::size_t i) { return keys[i]; },
      [&](std::size_t i, RowStore::Row row) {
        num_wrong += (row != RowStore::kNone) == there[keys[i]] ? 0 : 1;
        if (row != RowStore::kNone) num_wrong += store.head(row).key == keys[i] ? 0 : 1;
        if (row == RowStore::kNone) {
          store.append(keys[i]);
          there[keys[i]] = true;
        } else if (store.size() > 1) {
          const RowStore::Row victim = (row + 7) % store.size();
          there[store.head(victim).key] = false;
          store.erase(victim);
        }
      });
  EXPECT_EQ(num_wrong, 0U);
}

TEST(RowStore, WritesDoNotChangeLeasedPages) {
  RowStore store(kFloats);
  for (std::uint64_t key = 0; key < 5000; ++key) store.floats(store.append(key))[0] = 1;
  ASSERT_GT(store.pages().num_pages(), 2U);
  std::vector<wire::Buffer> shared;
  std::vector<std::vector<std::byte>> before;
  for (std::size_t page = 0; page < store.pages().num_pages(); ++page) {
    shared.push_back(store.pages().lease(page));
    before.emplace_back(shared.back().bytes().begin(), shared.back().bytes().end());
  }
  for (std::uint64_t key = 0; key < 5000; key += 3) store.floats(store.find(key))[0] = 2;
  for (std::uint64_t key = 1; key < 5000; key += 3) store.erase(store.find(key));
  for (std::uint64_t key = 5000; key < 9000; ++key) store.append(key);
  for (std::size_t page = 0; page < shared.size(); ++page)
    EXPECT_TRUE(std::ranges::equal(before[page], shared[page].bytes())) << page;
}

wire::Buffer batch_of(const std::vector<std::pair<std::uint64_t, float>>& rows,
                      std::uint32_t row_elements = 2) {
  RowBatchWriter writer(rows.size(), row_elements);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (float& value : writer.put(i, rows[i].first, 1)) value = rows[i].second;
  }
  return std::move(writer).buffer();
}

TEST(RowBatches, ComeBackAsTheyWere) {
  const wire::Buffer buffer = batch_of({{3, 1}, {7, 2}, {UINT64_MAX, 3}});
  ASSERT_EQ(row_rejection(buffer.bytes(), 2), ErrorKind::kNone);
  const RowBatch batch(buffer.bytes());
  EXPECT_EQ(batch.size(), 3U);
  EXPECT_EQ(batch.key(2), UINT64_MAX);
  EXPECT_EQ(batch.count(1), 1U);
  EXPECT_EQ(batch.row(1)[1], 2);
}

TEST(RowBatches, RejectsMismatchedKeysAndSizes) {
  const wire::Buffer buffer = batch_of({{3, 1}, {7, 2}});
  const std::vector<std::byte> whole(buffer.bytes().begin(), buffer.bytes().end());
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_EQ(row_rejection(std::span(whole).first(size), 2), ErrorKind::kMalformed) << size;
  // The rows of another table: the lengths agree with the message but not with the table.
  EXPECT_EQ(row_rejection(whole, 3), ErrorKind::kOutOfRange);
  for (const std::uint32_t num_rows : {1U, 3U, UINT32_MAX}) {
    std::vector<std::byte> other = whole;
    std::memcpy(other.data() + 4, &num_rows, sizeof num_rows);
    EXPECT_EQ(row_rejection(other, 2), ErrorKind::kMalformed) << num_rows;
  }
  EXPECT_EQ(row_rejection(batch_of({{7, 1}, {3, 2}}).bytes(), 2), ErrorKind::kMalformed);
  EXPECT_EQ(row_rejection(batch_of({{3, 1}, {3, 2}}).bytes(), 2), ErrorKind::kMalformed);
  std::vector<std::byte> unnamed = whole;
  unnamed[8 + 2 * 8] = std::byte{0};  // the first count
  EXPECT_EQ(row_rejection(unnamed, 2), ErrorKind::kOutOfRange);
  const wire::Buffer keys = key_batch(std::vector<std::uint64_t>{3, 7}, 2);
  EXPECT_EQ(key_rejection(keys.bytes(), 2), ErrorKind::kNone);
  EXPECT_EQ(key_rejection(keys.bytes().first(23), 2), ErrorKind::kMalformed);
  EXPECT_EQ(key_rejection(key_batch(std::vector<std::uint64_t>{7, 7}, 2).bytes(), 2), ErrorKind::kMalformed);
}

TEST(RowBatches, FewKeysNeedLittleMemory) {
  std::vector<std::uint64_t> keys(16);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  constexpr std::uint32_t kLongRow = 16 << 10;  // 64 KiB
  EXPECT_EQ(key_rejection(key_batch(keys, kLongRow).bytes(), kLongRow), ErrorKind::kNone);
  keys.push_back(16);
  EXPECT_EQ(key_rejection(key_batch(keys, kLongRow).bytes(), kLongRow), ErrorKind::kTooLarge);
}

TEST(RowBatches, AreAddedUpInTheirOrder) {
  // In f32 the large number absorbs the small ones or not, depending on their order.
  const std::vector<wire::Buffer> batches = {
      batch_of({{1, 1e8F}, {5, 1}}), batch_of({{1, 3}, {2, 2}, {5, 1}}), batch_of({{1, -1e8F}, {9, 4}})};
  const wire::Buffer sum = merged(batches);
  ASSERT_EQ(row_rejection(sum.bytes(), 2), ErrorKind::kNone);
  const RowBatch batch(sum.bytes());
  ASSERT_EQ(batch.size(), 4U);
  EXPECT_EQ(batch.row(0)[0], (1e8F + 3) - 1e8F);
  EXPECT_EQ(batch.count(0), 3U);
  EXPECT_EQ(batch.key(1), 2U);
  EXPECT_EQ(batch.row(2)[1], 2);
  EXPECT_EQ(batch.count(3), 1U);
}

}  // namespace
}  // namespace trireme::ps
