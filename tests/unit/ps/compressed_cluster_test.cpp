// Tables with encoded pushes and pulls, in whole clusters.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "tests/unit/ps/cluster.h"
#include "trireme/base/error.h"

namespace trireme::ps {
namespace {

constexpr std::size_t kNumbers = 20;

TableSpec table_with(const CompressionSpec& compression) {
  TableSpec spec;
  spec.name = "weights";
  spec.num_elements = kNumbers;
  spec.chunk_elements = 8;
  spec.staleness = kAsynchronous;
  spec.compression = compression;
  return spec;
}

class CompressedTables : public testing::Test {
 protected:
  void begin(const TableSpec& spec, std::uint64_t seed = 7) {
    cluster.emplace(seed);
    table = cluster->create(0, spec);
    ASSERT_NE(table, 0U);
    ASSERT_TRUE(cluster->settles(10));
  }
  Result push(int worker, const std::vector<float>& values) {
    return cluster->wait(
        [&](Done done) { cluster->worker(worker).push(table, floats(values), std::move(done)); });
  }
  std::vector<float> pull(int worker) {
    std::vector<float> values(kNumbers);
    const Result pulled =
        cluster->wait([&](Done done) { cluster->worker(worker).pull(table, values, std::move(done)); });
    EXPECT_EQ(pulled.error, ErrorKind::kNone) << pulled.message;
    return values;
  }
  void assign(const std::vector<float>& values) {
    const Result assigned =
        cluster->wait([&](Done done) { cluster->worker(0).assign(table, floats(values), std::move(done)); });
    EXPECT_EQ(assigned.error, ErrorKind::kNone) << assigned.message;
  }
  std::uint64_t pushed_bytes() {
    std::uint64_t bytes = 0;
    for (int i = 0; i < cluster->options().num_servers; ++i) {
      std::optional<ServerStatus> status;
      cluster->server(i).ask_status([&](const ServerStatus& told) { status = told; });
      cluster->simulation.run_until([&] { return status.has_value(); }, 1);
      bytes += status->held.counts.push_bytes;
    }
    return bytes;
  }

  std::optional<Cluster> cluster;
  TableId table = 0;
};

std::vector<float> counting() {
  std::vector<float> values(kNumbers);
  for (std::size_t i = 0; i < kNumbers; ++i) values[i] = static_cast<float>(i) - 5;
  return values;
}

TEST_F(CompressedTables, SumExactCodecsAndCountBytes) {
  for (const char* name : {"none", "fp16", "bf16", "int8"}) {
    begin(table_with({.push = name}));
    std::vector<float> values = counting();
    // In every chunk, so that int8 represents integers exactly.
    for (const std::size_t i : {0, 8, 16}) values[i] = 127;
    EXPECT_EQ(push(0, values).error, ErrorKind::kNone) << name;
    EXPECT_EQ(push(1, values).error, ErrorKind::kNone) << name;
    for (float& value : values) value *= 2;
    EXPECT_EQ(pull(0), values) << name;
    const std::string_view is = name;
    const std::uint64_t bytes = is == "none" ? 80 : is == "int8" ? 20 + 3 * 4 : 40;
    EXPECT_EQ(pushed_bytes(), 2 * bytes) << name;
  }
}

TEST_F(CompressedTables, AreRoundedEquallyInEveryRun) {
  for (const char* name : {"int8", "qsgd"}) {
    std::vector<std::vector<float>> runs;
    for (const std::uint64_t seed : {7, 8}) {
      begin(table_with({.push = name}), seed);
      for (int step = 0; step < 3; ++step) {
        for (int worker = 0; worker < 2; ++worker) push(worker, counting());
      }
      runs.push_back(pull(0));
    }
    EXPECT_EQ(runs[0], runs[1]) << name;
  }
}

TEST_F(CompressedTables, PushResidualWithNextStep) {
  begin(table_with({.push = "top-k", .fraction = 0.25}));
  const std::vector<float> values = counting();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(push(0, values).error, ErrorKind::kNone);
  std::vector<float> both = pull(0);
  std::size_t num_left = 0;
  for (std::size_t i = 0; i < kNumbers; ++i) {
    const float left = cluster->worker(0).residual(table, i / 8)[i % 8];
    num_left += left != 0 ? 1 : 0;
    both[i] += left;
    EXPECT_EQ(both[i], 5 * values[i]) << i;
  }
  EXPECT_GT(num_left, 0U);
  EXPECT_LT(pushed_bytes(), 5 * kNumbers * sizeof(float));
}

TEST_F(CompressedTables, AssignmentAndRestoreDropResidual) {
  for (const char* name : {"int8", "top-k"}) {
    TableSpec spec = table_with({.push = name, .pull = "bf16"});
    spec.optimizer.name = "adagrad";
    begin(spec);
    push(0, counting());
    const std::vector<float> values(kNumbers, 0.1F);  // none of these codecs represents it exactly
    assign(values);
    EXPECT_TRUE(cluster->worker(0).residual(table, 0).empty());
    const Result state =
        cluster->wait([&](Done done) { cluster->worker(1).pull_state(table, 0, std::move(done)); });
    ASSERT_EQ(state.values.size(), 2 * 8 * sizeof(float));
    EXPECT_TRUE(std::ranges::equal(state.values.bytes().first(8 * sizeof(float)),
                                   std::as_bytes(std::span(values).first(8))));
  }
}

TEST_F(CompressedTables, ArePulledRounded) {
  for (const char* name : {"fp16", "bf16", "int8"}) {
    begin(table_with({.pull = name}));
    std::vector<float> values = counting();
    for (float& value : values) value += 0.001F;
    assign(values);
    const std::vector<float> told = pull(1);
    EXPECT_NE(told, values) << name;
    EXPECT_THAT(told, testing::Pointwise(testing::FloatNear(0.15F), values)) << name;
    const Result chunk =
        cluster->wait([&](Done done) { cluster->worker(1).pull_chunk(table, 2, 0, std::move(done)); });
    ASSERT_EQ(chunk.values.size(), 4 * sizeof(float)) << "what a codec made is f32 again";
    EXPECT_TRUE(std::ranges::equal(chunk.values.bytes(), std::as_bytes(std::span(told).subspan(16, 4))));
    const Result again = cluster->wait(
        [&](Done done) { cluster->worker(1).pull_chunk(table, 2, chunk.version, std::move(done)); });
    EXPECT_FALSE(again.changed);
  }
}

TEST_F(CompressedTables, AreEqualForAllPullsOfVersion) {
  begin(table_with({.pull = "int8"}));
  std::vector<float> values = counting();
  for (float& value : values) value += 0.3F;
  assign(values);
  EXPECT_EQ(pull(0), pull(1));
}

TEST_F(CompressedTables, HaveRowsToo) {
  for (const char* name : {"fp16", "bf16", "int8"}) {
    TableSpec spec = table_with({.push = name, .pull = name});
    spec.kind = TableKind::kSparse;
    spec.num_elements = 0;
    spec.rows.elements = 3;
    begin(spec);
    std::vector<std::uint64_t> keys;
    std::vector<float> rows;
    for (std::uint64_t key = 0; key < 40; ++key) {
      keys.push_back(key * key * key);
      rows.insert(rows.end(), {127, static_cast<float>(key), -static_cast<float>(key)});
    }
    const Result pushed =
        cluster->wait([&](Done done) { cluster->worker(0).push_rows(table, keys, rows, std::move(done)); });
    EXPECT_EQ(pushed.error, ErrorKind::kNone) << name << ": " << pushed.message;
    EXPECT_LT(pushed_bytes(), 40 * (12 + 3 * sizeof(float))) << name;
    std::vector<float> told(rows.size());
    const Result pulled =
        cluster->wait([&](Done done) { cluster->worker(1).pull_rows(table, keys, told, std::move(done)); });
    EXPECT_EQ(pulled.error, ErrorKind::kNone) << name << ": " << pulled.message;
    EXPECT_EQ(told, rows) << name;
  }
}

TEST_F(CompressedTables, OfAnotherCodecAreOtherTables) {
  begin(table_with({.push = "fp16"}));
  const Result other = cluster->wait(
      [&](Done done) { cluster->worker(1).create_table(table_with({.push = "bf16"}), std::move(done)); });
  EXPECT_EQ(other.error, ErrorKind::kOutOfRange);
  const Result same = cluster->wait(
      [&](Done done) { cluster->worker(1).create_table(table_with({.push = "fp16"}), std::move(done)); });
  EXPECT_EQ(same.error, ErrorKind::kNone);
}

TEST(CompressionSpec, IsRejectedWithTheReason) {
  const auto rejection = [](TableSpec spec) -> std::string {
    try {
      check(spec);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(rejection(table_with({.pull = "top-k"})), testing::HasSubstr("leaves most of them out"));
  EXPECT_THAT(rejection(table_with({.push = "fp61"})), testing::HasSubstr("fp16"));
  EXPECT_THAT(rejection(table_with({.push = "top-k", .fraction = 0})),
              testing::HasSubstr("compression.fraction"));
  EXPECT_THAT(rejection(table_with({.push = "top-k", .fraction = std::nan("")})),
              testing::HasSubstr("compression.fraction"));
  TableSpec rows = table_with({.push = "top-k"});
  rows.kind = TableKind::kSparse;
  rows.num_elements = 0;
  rows.rows.elements = 3;
  EXPECT_THAT(rejection(rows), testing::HasSubstr("for every key"));
  EXPECT_EQ(rejection(table_with({.push = "top-k", .pull = "int8"})), "");
}

}  // namespace
}  // namespace trireme::ps
