// One world over two hosts with a network between them: shared memory inside each host, gloo between the
// hosts.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trained_run.h"
#include "tests/support/two_hosts.h"
#include "tests/support/ucx.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

class Hosts : public testing::Test {
 protected:
  void SetUp() override {
    if (!hosts_.unavailable_because().empty()) GTEST_SKIP() << hosts_.unavailable_because();
  }

  /// The joined output of two ranks on each host.
  std::string output_of(const std::vector<std::string>& command) const {
    std::string output;
    for (auto& launcher : hosts_.launch(2, command)) {
      const ChildResult result = launcher->wait(60);
      EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
      output += result.out;
    }
    return output;
  }

  static constexpr int kSteps = 50;
  /// Bytes that the first host sends in a fixed number of steps of an MLP whose first layer is 784 x 1024.
  std::int64_t sent_in_steps(std::vector<std::string> settings) {
    const TemporaryFolder folder;
    std::vector<std::string> command = {bin("trireme-torch"), "train", checkout("examples/quick.toml")};
    for (const std::string& setting :
         {"run.folder=" + folder.path().string(), std::string("model.hidden=[1024]"),
          text("train.max_steps=", kSteps), std::string("optimizer.name=sgd"),
          std::string("comm.all_reduce=gloo"), std::string("comm.timeout_s=20")})
      settings.push_back(setting);
    for (const std::string& setting : settings) command.insert(command.end(), {"--set", setting});
    const std::int64_t before = hosts_.bytes_sent(0);
    output_of(command);
    return hosts_.bytes_sent(0) - before;
  }

  TwoHosts hosts_;
};

TEST_F(Hosts, AutoIsHierarchicalAndFindsFacingAddress) {
  const std::string output = output_of({bin("rank_comm_probe"), "auto", "20", "sum"});
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(output, HasSubstr(text("rank ", rank, " of 4 over hierarchical: sum 10")));
  }
}

TEST_F(Hosts, GlooAloneConnectsAllRanksOfBoth) {
  const std::string output = output_of({bin("rank_comm_probe"), "gloo", "20", "sum"});
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(output, HasSubstr(text("rank ", rank, " of 4 over gloo: sum 10")));
  }
}

TEST_F(Hosts, AllReplicasEndWithTheSameBits) {
  for (const char* compression : {"none", "top-k", "power-sgd"}) {
    std::set<std::string> digests;
    int num_ranks = 0;
    for (const std::string& line :
         split(output_of({bin("rank_ddp_steps"), "auto", "4", "-1", compression}), '\n')) {
      const auto begin = line.find("weights ");
      if (begin == std::string::npos) continue;
      digests.insert(line.substr(begin, line.find(',', begin) - begin));
      ++num_ranks;
    }
    EXPECT_EQ(num_ranks, 4) << compression;
    EXPECT_EQ(digests.size(), 1u) << compression << ": " << testing::PrintToString(digests);
  }
}

// Gradients are added inside each host before they are sent. So the cable carries what one rank per host
// would send.
TEST_F(Hosts, CompressedGradientsCrossCableOncePerHost) {
  const std::int64_t by_hosts = sent_in_steps({"parallel.compression=qsgd"}),
                     by_ranks =
                         sent_in_steps({"parallel.compression=qsgd", "parallel.compression_scope=all"});
  EXPECT_GT(by_hosts, kSteps * 784 * 1024 / 2) << "a sign and a level of each element";
  EXPECT_LT(by_hosts, by_ranks * 2 / 3);
}

// Each host sends a part of two ranks, so half as many bytes. The weights cross in 8 bits in either case.
TEST_F(Hosts, ShardedGradientsCrossCableOncePerHost) {
  const std::vector<std::string> shared_out = {"parallel.zero=2", "train.accumulation=1",
                                               "parallel.compression=int8",
                                               "parallel.weight_compression=int8"};
  std::vector<std::string> rank_by_rank = shared_out;
  rank_by_rank.emplace_back("parallel.compression_scope=all");
  const std::int64_t by_hosts = sent_in_steps(shared_out), by_ranks = sent_in_steps(rank_by_rank);
  const double of_step = 784 * 1024;
  EXPECT_NEAR(static_cast<double>(by_hosts) / kSteps, (0.5 + 0.5) * of_step, 0.15 * of_step);
  EXPECT_NEAR(static_cast<double>(by_ranks) / kSteps, (1.0 + 0.5) * of_step, 0.15 * of_step);
}

// Each host sends only the parts of the other host's two ranks. An all-to-all over all ranks would send twice
// as much, and a ring of all ranks half as much again.
TEST_F(Hosts, ShardsCrossTheCableOnce) {
  constexpr std::int64_t kNumel = 1 << 20, kUnderWay = 3;
  constexpr std::int64_t kExpected_bytes = kUnderWay * 2 * kNumel * 4;
  constexpr std::int64_t kRendezvous_bytes = 1 << 20;
  for (const char* step : {"reduce_scatter", "gather"}) {
    const std::int64_t before[] = {hosts_.bytes_sent(0), hosts_.bytes_sent(1)};
    const std::string output = output_of({bin("rank_shards"), "auto", "1", text(kNumel), step});
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_THAT(output, HasSubstr(text("rank ", rank, " over hierarchical: shards are right")));
    for (const int host : {0, 1}) {
      const std::int64_t sent = hosts_.bytes_sent(host) - before[host];
      EXPECT_GE(sent, kExpected_bytes) << step;
      EXPECT_LE(sent, kExpected_bytes * 11 / 10 + kRendezvous_bytes)
          << step << ": more than with all headers";
    }
  }
}

TEST_F(Hosts, TrainingOverUcxHasBitsOfTcp) {
  if (!has_ucx()) GTEST_SKIP() << "built without UCX";
  use_ucx_over_network();
  const TemporaryFolder folder;
  for (const char* zero : {"0", "3"}) {
    std::vector<std::string> digests;
    for (const char* network : {"tcp", "ucx"}) {
      std::vector<std::string> command = {bin("trireme-torch"), "train", checkout("examples/quick.toml")};
      for (const std::string& setting :
           {"run.folder=" + folder.path().string(), text("run.name=", network, zero),
            text("parallel.zero=", zero), text("comm.network=", network),
            std::string("comm.all_reduce=two_shot"), std::string("train.max_steps=10"),
            std::string("comm.timeout_s=20")}) {
        command.insert(command.end(), {"--set", setting});
      }
      output_of(command);
      digests.push_back(read_run(folder / text(network, zero)).weights_xxh3);
    }
    EXPECT_EQ(digests[0], digests[1]) << "zero " << zero;
  }
}

// A folder like the kernel's names the adapters. UCX finds the cable, or nothing.
TEST_F(Hosts, AutomaticNetworkFallsBackToTcp) {
  if (!has_ucx()) GTEST_SKIP() << "built without UCX";
  const TemporaryFolder folder, adapters;
  const std::filesystem::path port = adapters / "mlx5_0/ports/1";
  std::filesystem::create_directories(port);
  write_file_atomic(port / "state", "4: ACTIVE\n");
  const auto summary_of = [&](const std::string& name) {
    std::vector<std::string> command = {bin("trireme-torch"), "train", checkout("examples/quick.toml")};
    for (const std::string& setting :
         {"run.folder=" + folder.path().string(), "run.name=" + name, std::string("comm.network=auto"),
          std::string("train.max_steps=4"), std::string("comm.timeout_s=20")}) {
      command.insert(command.end(), {"--set", setting});
    }
    output_of(command);
    return read_file(folder / name / "summary.json");
  };
  use_ucx_over_network();
  ::setenv("TRIREME_INFINIBAND", adapters.path().c_str(), /*overwrite=*/1);
  EXPECT_THAT(summary_of("measured"),
              AllOf(ContainsRegex("\"network\": \"(tcp|ucx)\""),
                    ContainsRegex("a message of 4 MiB takes [0-9]+ us over UCX and [0-9]+ us over TCP")));
  ::setenv("UCX_NET_DEVICES", "mlx5_9:1", /*overwrite=*/1);
  EXPECT_THAT(summary_of("failed"), AllOf(HasSubstr(R"("network": "tcp")"), HasSubstr("UCX failed: ")));
  std::filesystem::remove_all(adapters / "mlx5_0");
  EXPECT_THAT(summary_of("none"), AllOf(HasSubstr(R"("network": "tcp")"),
                                        HasSubstr("no RDMA adapter has an active port (rank 0)")));
}

TEST_F(Hosts, TrainingGivesTheNumbersOfOneRank) {
  const TemporaryFolder folder;
  const auto command = [&](const std::string& name) -> std::vector<std::string> {
    return {bin("trireme-torch"),
            "train",
            checkout("examples/quick.toml"),
            "--set",
            "run.folder=" + folder.path().string(),
            "--set",
            "run.name=" + name,
            "--set",
            "run.log_every_steps=1",
            "--set",
            "train.max_steps=10",
            "--set",
            "comm.timeout_s=20"};
  };
  output_of(command("hosts"));
  const ChildResult one = run(command("one"), {}, 60);
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const TrainedRun found = read_run(folder / "hosts");
  EXPECT_EQ(found.world_size, 4);
  // The bound of docs/training.md: only the order of f32 additions differs.
  const auto [loss, weight, norm] = distance(found, read_run(folder / "one"));
  EXPECT_LT(loss, 1e-5);
  EXPECT_LT(weight, 1e-5);
}

// Their group is on one host, so they have one copy of the weights in its memory.
TEST_F(Hosts, ReplicasOfStageShareMemoryOfHost) {
  const TemporaryFolder folder;
  std::vector<std::string> settings;
  for (const std::string setting :
       {"model.hidden=[1024,1024]", "parallel.pipeline=2", "parallel.microbatches=2", "parallel.zero=1",
        "parallel.partition=parameters", "train.accumulation=1", "checkpoint.every_steps=0",
        "comm.torch_threads=1"})
    settings.insert(settings.end(), {"--set", setting});
  std::vector<std::string> told = {bin("trireme"), "memory", checkout("examples/quick.toml"),
                                   "-n",           "4",      "--json"};
  told.insert(told.end(), settings.begin(), settings.end());
  const ChildResult forecast = run(told, {}, 60);
  ASSERT_EQ(forecast.exit_code, 0) << forecast.err;
  const double expected =
      nlohmann::json::parse(forecast.out).at("modes").at(0).at("peak_bytes").at("weights");
  std::vector<std::string> command = {bin("trireme-torch"), "train", checkout("examples/quick.toml")};
  command.insert(command.end(), settings.begin(), settings.end());
  for (const std::string& setting : {"run.folder=" + folder.path().string(), std::string("run.name=shared"),
                                     std::string("train.max_steps=4"), std::string("comm.timeout_s=20")})
    command.insert(command.end(), {"--set", setting});
  output_of(command);
  const auto summary = nlohmann::json::parse(read_file(folder / "shared/summary.json"));
  const double taken = summary.at("memory_peak_weights_bytes");
  EXPECT_NEAR(taken, expected, 0.05 * expected);
}

}  // namespace
}  // namespace trireme::test
