// The handling of pushed rows: admission of keys, updates, eviction, and copies that are equal and stay
// equal.

#include "trireme/ps/internal/sparse_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::ps {
namespace {

using Keys = std::vector<std::uint64_t>;
constexpr std::uint32_t kElements = 4;

TableSpec rows_of(const RowSpec& rows = {}) {
  TableSpec spec;
  spec.name = "rows";
  spec.kind = TableKind::kSparse;
  spec.rows = rows;
  if (spec.rows.elements == 0) spec.rows.elements = kElements;
  spec.seed = 3;
  return spec;
}

/// Pushes `value` for every element of these ascending keys. Each is named `count` times.
void push(SparseTable& table, const Keys& keys, float value, WorkerClock clock, std::uint32_t count = 1) {
  RowBatchWriter writer(keys.size(), kElements);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    for (float& one : writer.put(i, keys[i], count)) one = value;
  }
  const wire::Buffer body = std::move(writer).buffer();
  table.push(RowBatch(body.bytes()), kTableRate, clock);
}

std::vector<float> read(const SparseTable& table, const Keys& keys, WorkerClock clock = 0) {
  std::vector<float> values(keys.size() * kElements);
  const wire::Buffer body = key_batch(keys, kElements);
  table.read(KeyBatch(body.bytes()), clock, values);
  return values;
}

bool holds(const SparseTable& table, std::uint64_t key, WorkerClock clock) {
  return read(table, {key}, clock)[0] != 0;
}

TEST(SparseTable, CreatesRowOnPushNotRead) {
  TableSpec spec = rows_of();
  spec.initial_range = 0.5F;
  SparseTable table(spec);
  const std::uint64_t digest = table.digest(0);
  std::vector<float> first;
  for (const std::uint64_t key : {7U, 9U}) {
    for (std::uint32_t i = 0; i < kElements; ++i) first.push_back(initial_value(spec, key, i));
  }
  EXPECT_EQ(read(table, {7, 9}), first);
  EXPECT_EQ(table.num_rows(), 0U);
  EXPECT_EQ(table.digest(0), digest);
  EXPECT_NE(first[0], first[1]);
  EXPECT_NE(first[0], first[kElements]);
  push(table, {9}, 1, 0);
  EXPECT_EQ(table.num_rows(), 1U);
  for (std::size_t i = kElements; i < first.size(); ++i) first[i] += 1;
  EXPECT_EQ(read(table, {7, 9}), first);
}

class SparseRules : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, SparseRules,
                         testing::Values("sum", "sgd", "adagrad", "rowwise_adagrad", "adam", "adamw",
                                         "rmsprop", "ftrl"),
                         [](const auto& row) { return row.param; });

TEST_P(SparseRules, UpdateRowLikeChunkWithItsSteps) {
  TableSpec spec = rows_of();
  spec.initial_range = 1;
  spec.optimizer = {.name = GetParam(), .lr = 0.1, .weight_decay = 0.01, .momentum = 0.9, .first_sum = 0.1};
  SparseTable table(spec);
  const OptimizerRule& rule = optimizer_rule(GetParam());
  struct Dense {
    std::vector<float> values, state;
    std::uint64_t step = 0;
  };
  std::vector<Dense> expected(50);
  for (std::uint64_t key = 0; key < expected.size(); ++key) {
    for (std::uint32_t i = 0; i < kElements; ++i) expected[key].values.push_back(initial_value(spec, key, i));
    expected[key].state.assign(rule.state_elements(kElements), rule.first_state(spec.optimizer));
  }
  Random random(5);
  for (int step = 0; step < 30; ++step) {
    Keys keys;
    for (std::uint64_t key = 0; key < expected.size(); ++key) {
      if (random.below(3) == 0) keys.push_back(key);
    }
    RowBatchWriter writer(keys.size(), kElements);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::span<float> gradient = writer.put(i, keys[i], 1);
      for (float& one : gradient) one = 2 * random.uniform() - 1;
      Dense& dense = expected[keys[i]];
      rule.update(with_defaults(spec.optimizer),
                  {.values = dense.values, .gradient = gradient, .state = dense.state, .step = ++dense.step});
    }
    const wire::Buffer body = std::move(writer).buffer();
    table.push(RowBatch(body.bytes()), kTableRate, 0);
  }
  for (std::uint64_t key = 0; key < expected.size(); ++key)
    EXPECT_EQ(read(table, {key}), expected[key].values);
}

TEST(SparseTableSpec, RejectsOptionsThatRowsDoNotSupport) {
  const auto rejection = [](const TableSpec& spec) -> std::string {
    try {
      check(spec);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(rejection(rows_of()), "");
  TableSpec spec = rows_of();
  spec.optimizer.name = "lamb";
  EXPECT_THAT(rejection(spec), testing::HasSubstr("table rows: lamb scales the step of a whole tensor"));
  spec = rows_of();
  spec.num_elements = 5;
  EXPECT_THAT(rejection(spec), testing::HasSubstr("num_elements"));
  spec = rows_of();
  spec.rows.elements = 0;
  EXPECT_THAT(rejection(spec), testing::HasSubstr("rows.elements must be 1 to"));
  spec = rows_of({.admit_after = 0});
  EXPECT_THAT(rejection(spec), testing::HasSubstr("admit_after"));
  spec = rows_of({.admit_probability = std::nan("")});
  EXPECT_THAT(rejection(spec), testing::HasSubstr("admit_probability"));
  spec = rows_of();
  spec.kind = TableKind::kDense;
  spec.num_elements = 4;
  EXPECT_THAT(rejection(spec), testing::HasSubstr("this one is dense"));
}

TEST(SparseAdmission, CountsNamingsHoweverTheyCome) {
  SparseTable table(rows_of({.admit_after = 5}));
  push(table, {1, 2}, 1, 0, 2);
  push(table, {1, 3}, 1, 0, 2);
  EXPECT_EQ(table.num_rows(), 0U);
  EXPECT_EQ(table.num_candidates(), 3U);
  EXPECT_FALSE(holds(table, 1, 0));
  push(table, {1}, 10, 0);  // the fifth
  EXPECT_EQ(table.num_rows(), 1U);
  EXPECT_EQ(table.num_candidates(), 2U);
  EXPECT_EQ(read(table, {1}), std::vector<float>(kElements, 10));  // the earlier ones are forgotten
  push(table, {4}, 3, 0, 5);
  EXPECT_EQ(read(table, {4}), std::vector<float>(kElements, 3));
  EXPECT_EQ(table.num_candidates(), 2U);
}

TEST(SparseAdmission, DrawsBySeedKeyAndCountAlone) {
  const TableSpec spec = rows_of({.admit_probability = 0.25});
  Keys keys;
  for (std::uint64_t key = 0; key < 4000; ++key) keys.push_back(key);
  SparseTable at_once(spec), one_by_one(spec);
  push(at_once, keys, 1, 0, 3);
  for (int i = 0; i < 3; ++i) push(one_by_one, keys, 1, static_cast<WorkerClock>(i));
  std::size_t num_held = 0;
  for (const std::uint64_t key : keys) {
    num_held += holds(at_once, key, 0) ? 1 : 0;
    EXPECT_EQ(holds(at_once, key, 0), holds(one_by_one, key, 0)) << key;
  }
  // 1 - 0.75^3 of them, within five standard deviations.
  EXPECT_NEAR(static_cast<double>(num_held) / 4000, 1 - 0.75 * 0.75 * 0.75, 5 * 0.0078);
  TableSpec other = spec;
  other.seed = 4;
  SparseTable another(other);
  push(another, keys, 1, 0, 3);
  EXPECT_NE(read(another, keys), read(at_once, keys));
}

TEST(SparseEviction, ExpiresRowsWithoutRecentPushes) {
  SparseTable table(rows_of({.evict_after = 3}));
  push(table, {1, 2}, 1, 10);
  push(table, {2}, 1, 12);
  EXPECT_TRUE(holds(table, 1, 13));
  EXPECT_FALSE(holds(table, 1, 14));
  EXPECT_TRUE(holds(table, 2, 14));
  push(table, {1}, 5, 14);  // a new row
  EXPECT_EQ(read(table, {1, 2}, 14), (std::vector<float>{5, 5, 5, 5, 2, 2, 2, 2}));
}

TEST(SparseEviction, ErasesExpiredRowsWithinSameInterval) {
  SparseTable table(rows_of({.admit_after = 2, .evict_after = 10}));
  Keys keys;
  for (std::uint64_t key = 0; key < 1000; ++key) keys.push_back(key);
  push(table, keys, 1, 0, 2);
  Keys candidates;
  for (std::uint64_t key = 5000; key < 5500; ++key) candidates.push_back(key);
  push(table, candidates, 1, 0, 1);
  const Keys kept = {100, 500, 999};
  for (WorkerClock clock = 0; clock < 22; ++clock) {
    push(table, kept, 1, clock);
    if (clock == 10) {
      EXPECT_EQ(table.num_rows(), 1000U);
    }
    table.advance(clock, clock + 1);
  }
  EXPECT_EQ(table.num_rows(), kept.size());
  EXPECT_EQ(table.num_candidates(), 0U);
  EXPECT_EQ(read(table, {999}, 22), std::vector<float>(kElements, 23));
}

TEST(SparseEviction, BoundsRowsThatArePushedRepeatedly) {
  SparseTable table(rows_of({.most_rows = 1000, .num_partitions = 10}));
  Keys often;
  for (std::uint64_t key = 0; key < 50; ++key) often.push_back(key);
  for (std::uint64_t once = 0; once < 2000; once += 20) {
    push(table, often, 1, 0);
    Keys keys;
    for (std::uint64_t i = 0; i < 20; ++i) keys.push_back(1'000'000 + once + i);
    push(table, keys, 1, 0);
    ASSERT_LE(table.num_rows(), 100U);
  }
  EXPECT_EQ(table.num_rows(), 100U);
  for (const std::uint64_t key : often) EXPECT_EQ(read(table, {key})[0], 100) << key;
}

TEST(SparseEviction, KeepsCandidatesWithinTheBoundToo) {
  SparseTable table(rows_of({.admit_after = 2, .most_rows = 64, .num_partitions = 1}));
  for (std::uint64_t key = 0; key < 1000; ++key) push(table, {key}, 1, 0);
  EXPECT_EQ(table.num_candidates(), 64U);
}

TEST(SparseAssign, GivesEveryKeyItsRow) {
  SparseTable table(rows_of({.admit_after = 3}));
  push(table, {5}, 1, 0);
  EXPECT_EQ(table.num_candidates(), 1U);
  RowBatchWriter writer(2, kElements);
  for (float& value : writer.put(0, 5, 1)) value = 4;
  for (float& value : writer.put(1, 6, 1)) value = 8;
  const wire::Buffer body = std::move(writer).buffer();
  table.assign(RowBatch(body.bytes()), 0);
  EXPECT_EQ(table.num_candidates(), 0U);
  push(table, {5, 6}, 1, 0);
  EXPECT_EQ(read(table, {5, 6}), (std::vector<float>{5, 5, 5, 5, 9, 9, 9, 9}));
}

TEST(SparseAssign, BeginsTheRowsOptimizerAnew) {
  TableSpec spec = rows_of();
  spec.optimizer = {.name = "adam", .lr = 0.1};
  SparseTable used(spec), fresh(spec);
  push(used, {5}, 1, 0);
  push(used, {5}, -3, 0);
  for (SparseTable* table : {&used, &fresh}) {
    RowBatchWriter writer(1, kElements);
    for (float& value : writer.put(0, 5, 1)) value = 4;
    const wire::Buffer body = std::move(writer).buffer();
    table->assign(RowBatch(body.bytes()), 0);
    push(*table, {5}, 2, 0);
  }
  EXPECT_EQ(read(used, {5}), read(fresh, {5}));
  EXPECT_NE(read(used, {5})[0], 4);
}

TEST(SparseTable, TakesTheRateOfAPush) {
  TableSpec spec = rows_of();
  spec.optimizer = {.name = "sgd", .lr = 0.5};
  SparseTable table(spec);
  RowBatchWriter writer(1, kElements);
  for (float& value : writer.put(0, 1, 1)) value = 1;
  const wire::Buffer body = std::move(writer).buffer();
  table.push(RowBatch(body.bytes()), kTableRate, 0);
  EXPECT_EQ(read(table, {1})[0], -0.5F);
  table.push(RowBatch(body.bytes()), 0.25, 0);
  EXPECT_EQ(read(table, {1})[0], -0.75F);
}

/// Random pushes: some keys often, most rarely.
void push_randomly(SparseTable& table, Random& random, WorkerClock first, WorkerClock steps) {
  for (WorkerClock clock = first; clock < first + steps; ++clock) {
    std::set<std::uint64_t> keys;
    for (int i = 0; i < 200; ++i) keys.insert(random.below(random.below(2) == 0 ? 100 : 5000));
    push(table, Keys(keys.begin(), keys.end()), random.uniform(), clock);
    table.advance(clock, clock + 1);
  }
}

TEST(SparseSnapshot, CopyOfMomentContinuesLikeSource) {
  TableSpec spec = rows_of({.admit_after = 2, .evict_after = 20, .most_rows = 1500, .num_partitions = 1});
  spec.optimizer.name = "adam";
  SparseTable table(spec);
  Random random(8);
  push_randomly(table, random, 0, 50);
  const std::uint64_t digest = table.digest(0);
  const std::vector<SparseTable::Part> parts = table.snapshot();
  Random same = random;
  push_randomly(table, random, 50, 30);
  EXPECT_NE(table.digest(0), digest);
  SparseTable copy(spec);
  for (const SparseTable::Part& part : parts) ASSERT_TRUE(copy.install(part.flat()));
  EXPECT_EQ(copy.digest(0), digest);
  EXPECT_GT(copy.num_rows(), 100U);
  EXPECT_GT(copy.num_candidates(), 100U);
  push_randomly(copy, same, 50, 30);
  EXPECT_EQ(copy.digest(0), table.digest(0));
}

TEST(SparseSnapshot, ComesInPartsOfAboutAMebibyte) {
  SparseTable table(rows_of());
  Keys keys;
  for (std::uint64_t key = 0; key < 100'000; ++key) keys.push_back(key);
  push(table, keys, 1, 0);
  const std::vector<SparseTable::Part> parts = table.snapshot();
  EXPECT_GE(parts.size(), 3U);
  for (const SparseTable::Part& part : parts) EXPECT_LE(part.flat().size(), (1U << 20) + 64);
}

TEST(SparseSnapshot, IsRejectedWhereItIsNone) {
  SparseTable table(rows_of());
  push(table, {1, 2, 3}, 1, 0);
  const std::vector<std::byte> whole = table.snapshot().at(0).flat();
  const auto installs = [](std::span<const std::byte> bytes) {
    return SparseTable(rows_of()).install(bytes);
  };
  EXPECT_TRUE(installs(whole));
  EXPECT_FALSE(installs(std::span(whole).first(4)));
  EXPECT_FALSE(installs(std::span(whole).first(whole.size() - 1)));
  std::vector<std::byte> other = whole;
  other[0] = std::byte{2};
  EXPECT_FALSE(installs(other));
  SparseTable twice(rows_of());
  EXPECT_TRUE(twice.install(whole));
  EXPECT_FALSE(twice.install(whole));  // its keys exist already
}

}  // namespace
}  // namespace trireme::ps
