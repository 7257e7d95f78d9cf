// Checkpoints of sparse tables over real loops and files, and checkpoints of versions without sparse tables.

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/ps/real_cluster.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/random.h"
#include "trireme/ps/checkpoint_file.h"
#include "trireme/ps/client.h"

namespace trireme::ps {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kNumKeys = 400;

ClientOptions asker_of(const RealCluster& cluster) {
  return {.worker = 0, .host = "here", .coordinator = cluster.address()};
}

/// Rows of 3 floats and 6 of adam, which fill 12 bytes less than their places.
TableSpec users() {
  TableSpec spec;
  spec.name = "users";
  spec.kind = TableKind::kSparse;
  spec.rows = {.elements = 3, .admit_after = 2, .admit_probability = 0.7, .evict_after = 4};
  spec.optimizer = {.name = "adam", .lr = 0.1};
  spec.initial_range = 0.5F;
  spec.seed = 11;
  return spec;
}

std::vector<float> all_rows(Client& client, TableId table) {
  std::vector<std::uint64_t> keys;
  for (std::uint64_t key = 0; key < kNumKeys; ++key) keys.push_back(key);
  std::vector<float> rows(keys.size() * 3);
  client.pull_rows(table, keys, rows).get();
  return rows;
}

/// Pushes of one step: some keys at every step, others occasionally, the same for every caller. Waits for the
/// end of the step. Otherwise a record with it and later pushes would put these into the previous step.
void do_step(Client& client, TableId table, std::uint64_t step) {
  Random random(step, 77);
  std::vector<std::uint64_t> keys;
  for (int i = 0; i < 120; ++i) keys.push_back(random.below(random.below(2) == 0 ? 30 : kNumKeys));
  std::vector<float> gradients(keys.size() * 3);
  for (float& value : gradients) value = random.uniform() - 0.5F;
  client.push_rows(table, keys, gradients).get();
  client.tick();
  all_rows(client, table);
}

/// The contents of all its *.part files.
struct Pieces {
  std::uint64_t num_rows = 0, num_candidates = 0, most_bytes = 0, num_pieces = 0;
};
Pieces pieces_of(const fs::path& checkpoint) {
  Pieces pieces;
  for (const SavedPart& part : read_manifest(checkpoint).parts)
    read_part(checkpoint, part, {.rows = [&](const SavedRows& rows, const wire::Buffer& page) {
                (rows.of_candidates ? pieces.num_candidates : pieces.num_rows) += page.size();
                pieces.most_bytes = std::max<std::uint64_t>(pieces.most_bytes, page.size());
                ++pieces.num_pieces;
              }});
  pieces.num_rows /= 64;
  pieces.num_candidates /= 16;
  return pieces;
}

std::string said_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no DataError";
}

class SparseCheckpoints : public testing::Test {
 protected:
  test::TemporaryFolder folder_;
};

TEST_F(SparseCheckpoints, KeepBitsOnOtherPartitions) {
  constexpr std::uint64_t kSaved = 9, kEnd = 25;
  std::vector<float> at_saving, at_end;
  {
    RealCluster three(3);
    Client client(asker_of(three));
    const TableId table = client.open_table(users());
    for (std::uint64_t step = 0; step < kSaved; ++step) do_step(client, table, step);
    const fs::path path = client.checkpoint(folder_.path());
    const Pieces pieces = pieces_of(path);
    EXPECT_GT(pieces.num_rows, 50U);
    EXPECT_GT(pieces.num_candidates, 20U);
    at_saving = all_rows(client, table);
    for (std::uint64_t step = kSaved; step < kEnd; ++step) do_step(client, table, step);
    at_end = all_rows(client, table);
  }
  for (const std::uint32_t num_partitions : {4U, 16U, 64U}) {
    SCOPED_TRACE(text(num_partitions, " partitions"));
    RealCluster others(num_partitions == 4 ? 1 : 2, {.num_partitions = num_partitions});
    Client client(asker_of(others));
    // This cluster has other ids and clocks.
    TableSpec another = users();
    another.name = "another";
    const TableId first = client.open_table(another);
    for (std::uint64_t step = 0; step < 3; ++step) do_step(client, first, step);
    client.restore(folder_.path());
    const TableId table = client.open_table(users());
    EXPECT_EQ(all_rows(client, table), at_saving);
    for (std::uint64_t step = kSaved; step < kEnd; ++step) do_step(client, table, step);
    EXPECT_EQ(all_rows(client, table), at_end);
  }
}

TEST_F(SparseCheckpoints, RestoreExactRowsTwiceInSequence) {
  RealCluster cluster(2);
  Client client(asker_of(cluster));
  TableSpec spec = users();
  spec.rows.evict_after = 0;  // expired rows are not restored
  const TableId table = client.open_table(spec);
  for (std::uint64_t step = 0; step < 5; ++step) do_step(client, table, step);
  const fs::path first = client.checkpoint(folder_.path());
  const std::vector<float> saved = all_rows(client, table);
  for (std::uint64_t step = 20; step < 24; ++step) do_step(client, table, step);
  const fs::path second = client.checkpoint(folder_.path());
  const std::vector<float> later = all_rows(client, table);
  ASSERT_NE(saved, later);
  client.restore(first);
  EXPECT_EQ(all_rows(client, table), saved);
  client.restore(second);
  EXPECT_EQ(all_rows(client, table), later);
  client.restore(first);
  EXPECT_EQ(all_rows(client, table), saved);
  // Nothing of the other tables remains, and neither do the counts of named keys.
  const Pieces pieces = pieces_of(first), again = pieces_of(client.checkpoint(folder_.path()));
  EXPECT_EQ(pieces.num_rows, again.num_rows);
  EXPECT_EQ(pieces.num_candidates, again.num_candidates);
}

TEST_F(SparseCheckpoints, OfATableWithoutRowsEmptyIt) {
  RealCluster cluster(1);
  Client client(asker_of(cluster));
  const TableId table = client.open_table(users());
  const fs::path path = client.checkpoint(folder_.path());
  const std::vector<float> first = all_rows(client, table);
  for (std::uint64_t step = 0; step < 4; ++step) do_step(client, table, step);
  ASSERT_NE(all_rows(client, table), first);
  client.restore(path);
  EXPECT_EQ(all_rows(client, table), first);
}

TEST_F(SparseCheckpoints, DamagedOnesAreNamedAndChangeNothing) {
  RealCluster cluster(1, {.num_partitions = 1});
  Client client(asker_of(cluster));
  const TableId table = client.open_table(users());
  for (std::uint64_t step = 0; step < 5; ++step) do_step(client, table, step);
  const fs::path path = client.checkpoint(folder_.path());
  const std::vector<float> before = all_rows(client, table);
  const fs::path part = path / read_manifest(path).parts.front().file;
  const std::string whole = read_file(part);
  const auto expect_rejected = [&](const std::string& content, const std::string& reason) {
    std::ofstream(part, std::ios::binary) << content;
    const std::string said = said_by([&] { client.restore(path); });
    EXPECT_NE(said.find(part.string()), std::string::npos) << said;
    EXPECT_NE(said.find(reason), std::string::npos) << said;
    EXPECT_EQ(all_rows(client, table), before);
  };
  std::string changed = whole;
  changed.back() = static_cast<char>(changed.back() ^ 1);
  expect_rejected(changed, "rows of table 1 have another checksum");
  expect_rejected(whole.substr(0, whole.size() - 16), "is truncated");
  expect_rejected(whole + "behind", "the manifest says");
  std::ofstream(part, std::ios::binary) << whole;
  client.restore(path);
  EXPECT_EQ(all_rows(client, table), before);
}

TEST_F(SparseCheckpoints, AreReadAndSentInPieces) {
  RealCluster cluster(1, {.num_partitions = 1});
  Client client(asker_of(cluster));
  TableSpec spec = users();
  spec.rows = {.elements = 3};
  const TableId table = client.open_table(spec);
  std::vector<std::uint64_t> keys;
  for (std::uint64_t key = 0; key < 60'000; ++key) keys.push_back(key * key);
  client.push_rows(table, keys, std::vector<float>(3 * keys.size(), 1)).get();
  const fs::path path = client.checkpoint(folder_.path());
  const Pieces pieces = pieces_of(path);
  EXPECT_EQ(pieces.num_rows, keys.size());
  EXPECT_GT(pieces.num_pieces, 50U);
  EXPECT_LE(pieces.most_bytes, 64U << 10);
  std::vector<float> before(3 * keys.size()), after(3 * keys.size());
  client.pull_rows(table, keys, before).get();
  client.push_rows(table, keys, std::vector<float>(3 * keys.size(), 2)).get();
  client.restore(path);
  client.pull_rows(table, keys, after).get();
  EXPECT_EQ(after, before);
}

TEST_F(SparseCheckpoints, OfTheVersionBeforeThemAreRead) {
  RealCluster cluster(1);
  Client client(asker_of(cluster));
  client.restore(test::checkout("tests/golden/ps_checkpoint_2"));
  const ClusterMap map = client.map();
  const TableSpec* spec = map.table("weights");
  ASSERT_NE(spec, nullptr);
  EXPECT_EQ(spec->num_elements, 10U);
  EXPECT_EQ(spec->optimizer.name, "adam");
  EXPECT_EQ(spec->optimizer.lr, 0.125);
  const Result last = client.pull_state(spec->id, 2).get();
  const std::vector<float> expected = {-0x1.74d568p-1F, -0x1.d97c84p-4F, 0x1.1f3b64p-1F,
                                       0x1.41eb84p-1F,  0x1.ca8e3p-7F,   0x1.197744p-6F};
  EXPECT_EQ(last.num_updates, 3U);
  ASSERT_EQ(last.values.size(), expected.size() * sizeof(float));
  std::vector<float> found(expected.size());
  std::memcpy(found.data(), last.values.bytes().data(), last.values.size());
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace trireme::ps
