// Checkpoints over real loops and files, saved from some servers and loaded into others.

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"
#include "tests/unit/ps/cluster.h"
#include "tests/unit/ps/real_cluster.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/ps/checkpoint_file.h"
#include "trireme/ps/client.h"

namespace trireme::ps {
namespace {

namespace fs = std::filesystem;

ClientOptions worker_of(const RealCluster& cluster, WorkerId worker = 0) {
  return {.worker = worker, .host = "here", .coordinator = cluster.address()};
}

TableSpec table_named(const std::string& name, const std::string& optimizer) {
  TableSpec spec;
  spec.name = name;
  spec.num_elements = 1000;
  spec.chunk_elements = 64;
  spec.initial_range = 0.5F;
  spec.seed = 7;
  spec.optimizer.name = optimizer;
  return spec;
}

std::vector<float> gradient(std::uint64_t num_elements, int step) {
  std::vector<float> values(num_elements);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((i * 37 + static_cast<std::size_t>(step) * 11) % 101) / 50 - 1;
  return values;
}

struct Contents {
  std::vector<std::byte> bytes;
  std::uint64_t num_updates = 0;
  bool operator==(const Contents&) const = default;
};

/// Values, optimizer state and counts of updates of every chunk.
std::vector<Contents> contents_of(Client& client, const TableSpec& spec, TableId table) {
  std::vector<Contents> contents;
  for (std::uint64_t chunk = 0; chunk < spec.num_chunks(); ++chunk) {
    const Result pulled = client.pull_state(table, chunk).get();
    const auto bytes = pulled.values.bytes();
    contents.push_back({{bytes.begin(), bytes.end()}, pulled.num_updates});
  }
  return contents;
}

void flip_a_bit(const fs::path& path, std::size_t at) {
  std::string content = read_file(path);
  content.at(at) = static_cast<char>(content[at] ^ 4);
  std::ofstream(path, std::ios::binary) << content;
}

fs::path part_in(const fs::path& checkpoint) {
  return checkpoint / read_manifest(checkpoint).parts.front().file;
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no DataError";
}

class Checkpoints : public testing::Test {
 protected:
  /// Saves an adam table, and a table of sums one of whose chunks was pushed to.
  fs::path save(Client& client) {
    const TableId adam = client.open_table(adam_), sums = client.open_table(sums_);
    for (int step = 0; step < 3; ++step) {
      client.push(adam, gradient(adam_.num_elements, step)).get();
      client.push_chunk(sums, 2, floats(gradient(64, step))).get();
      client.tick();
    }
    const fs::path path = client.checkpoint(folder_.path());
    saved_ = {contents_of(client, adam_, adam), contents_of(client, sums_, sums)};
    client.push(adam, gradient(adam_.num_elements, 9)).get();
    client.push(sums, gradient(sums_.num_elements, 9)).get();
    client.tick();
    return path;
  }
  void expect_restored(Client& client) {
    const TableId adam = client.open_table(adam_), sums = client.open_table(sums_);
    EXPECT_EQ(contents_of(client, adam_, adam), saved_[0]);
    EXPECT_EQ(contents_of(client, sums_, sums), saved_[1]);
  }

  test::TemporaryFolder folder_;
  TableSpec adam_ = table_named("adam", "adam"), sums_ = table_named("sums", "sum");
  std::vector<std::vector<Contents>> saved_;
};

TEST_F(Checkpoints, HaveSameBitsOnOtherPartitions) {
  {
    RealCluster three(3);
    Client client(worker_of(three));
    save(client);
  }
  for (const int num_servers : {1, 2}) {
    RealCluster others(num_servers, {.num_partitions = num_servers == 1 ? 4U : 64U});
    Client client(worker_of(others));
    // This cluster has other table ids.
    client.open_table(table_named("another", "sum"));
    client.restore(folder_.path());
    expect_restored(client);
  }
}

TEST_F(Checkpoints, UndoLaterPushesEverywhere) {
  RealCluster cluster(2);
  Client client(worker_of(cluster));
  save(client);
  client.restore(folder_.path());
  expect_restored(client);
}

TEST_F(Checkpoints, RestoreTablesWithoutReplicas) {
  RealCluster cluster(1, {.gone_s = 0.5});
  Client client(worker_of(cluster));
  save(client);
  const TableId adam = client.map().table("adam")->id;
  Client other(worker_of(cluster, 1));
  other.open_table(adam_);
  cluster.end_server(0);
  cluster.add_server(1);
  std::vector<float> values(adam_.num_elements);
  EXPECT_THROW(client.pull(adam, values).get(), DataError);
  client.restore(folder_.path());
  expect_restored(client);
  // A worker from before the restore continues, too.
  client.push(adam, gradient(adam_.num_elements, 1)).get();
  other.push(adam, gradient(adam_.num_elements, 2)).get();
  EXPECT_EQ(other.pull_state(adam, 0).get().num_updates, saved_[0][0].num_updates + 2);
}

TEST_F(Checkpoints, InvalidOnesAreNamedAndChangeNothing) {
  RealCluster cluster(1);
  Client client(worker_of(cluster));
  const fs::path path = save(client);
  const TableId adam = client.map().table("adam")->id;
  const auto before = contents_of(client, adam_, adam);
  const fs::path part = part_in(path);
  const std::string whole = read_file(part), manifest = read_file(path / "manifest");
  const auto put = [&](const fs::path& file, const std::string& content) {
    std::ofstream(file, std::ios::binary) << content;
  };
  const auto expect_rejected = [&](const fs::path& file, const std::string& reason) {
    const std::string said = error_of([&] { client.restore(path); });
    EXPECT_NE(said.find(file.string()), std::string::npos) << said;
    EXPECT_NE(said.find(reason), std::string::npos) << said;
    put(part, whole);
    put(path / "manifest", manifest);
  };

  flip_a_bit(part, whole.size() - 1);
  expect_rejected(part, "is damaged: chunk");
  flip_a_bit(part, 40);
  expect_rejected(part, "its header has another checksum");
  flip_a_bit(path / "manifest", 40);
  expect_rejected(path / "manifest", "its header has another checksum");
  fs::resize_file(path / "manifest", (std::uint64_t{64} << 20) + 1);
  expect_rejected(path / "manifest", "is not a manifest of a checkpoint: it has 67108865 bytes");
  put(part, whole.substr(0, whole.size() - 4));
  expect_rejected(part, "is truncated");
  put(part, whole.substr(0, 10));
  expect_rejected(part, "is truncated");
  put(part, manifest);
  expect_rejected(part, "no file of this kind");
  fs::remove(part);
  expect_rejected(part, "cannot open");
  EXPECT_EQ(contents_of(client, adam_, adam), before);
  client.restore(path);
  expect_restored(client);
}

TEST_F(Checkpoints, KeepRequestedNumberAndIgnoreUnfinished) {
  RealCluster cluster(1);
  Client client(worker_of(cluster));
  save(client);
  client.checkpoint(folder_.path());
  begin_checkpoint(folder_.path());
  const fs::path last = client.checkpoint(folder_.path(), 2);
  EXPECT_EQ(last.filename(), "checkpoint-4");
  EXPECT_FALSE(fs::exists(folder_.path() / "checkpoint-1"));
  EXPECT_TRUE(fs::exists(folder_.path() / "checkpoint-2" / "manifest"));
  begin_checkpoint(folder_.path());
  EXPECT_EQ(client.restore(folder_.path()), last);
}

TEST_F(Checkpoints, UnwritableOnesAreNamedAndKeepPrevious) {
  RealCluster cluster(1);
  Client client(worker_of(cluster));
  const fs::path before = save(client);
  const fs::path nowhere = folder_.path() / "checkpoint-77";
  std::string why;
  client
      .call([&](ClientNode& node, Done done) {
        node.save(nowhere.string(), [&why, done = std::move(done)](const Result& result, const auto&) {
          why = result.error == ErrorKind::kNotSaved ? result.message : "";
          done(Result{});
        });
      })
      .get();
  EXPECT_NE(why.find("of server server0 was not saved"), std::string::npos) << why;
  EXPECT_NE(why.find(nowhere.string()), std::string::npos) << why;
  EXPECT_EQ(client.restore(folder_.path()), before);
}

}  // namespace
}  // namespace trireme::ps
