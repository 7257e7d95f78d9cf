// The benchmarks run and print JSON. The measured values have no meaning here.

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/ucx.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

/// Standard output of a program as JSON: one value, or one value per line among other lines.
std::vector<nlohmann::json> values_of(const std::vector<std::string>& command) {
  const ChildResult result = run(command, {}, 60);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  if (auto whole = nlohmann::json::parse(result.out, nullptr, false); !whole.is_discarded()) return {whole};
  std::vector<nlohmann::json> values;
  for (const std::string& line : split(result.out, '\n')) {
    if (line.starts_with('{')) values.push_back(nlohmann::json::parse(line));
  }
  return values;
}

TEST(BenchSmoke, AllReduceNamesEveryWay) {
  const auto values = values_of({bin("bench_allreduce"), "-n", "2", "--smoke"});
  ASSERT_EQ(values.size(), 1u);
  for (const char* way : {"gloo", "shm in place", "shm private"}) {
    EXPECT_THAT(values[0].dump(), testing::HasSubstr(way));
  }
}

TEST(BenchSmoke, CollectivesBetweenHostsGivesLinePerWay) {
  std::map<std::string, int> lines;
  for (const auto& value : values_of({bin("bench_all_reduce_between_hosts"), "--smoke"})) {
    ++lines[value.at("what")];
    EXPECT_GT(value.at("median_us").get<double>(), 0);
  }
  const int ucx = has_ucx() ? 1 : 0;
  const std::map<std::string, int> expected = {
      {"all_reduce", 8 + ucx}, {"all_gather", 2 + ucx}, {"reduce_scatter", 2 + ucx}};
  EXPECT_EQ(lines, expected);
}

TEST(BenchSmoke, PlanChoiceMeasuresChosenPlan) {
  const auto values = values_of({bin("trireme"), "launch", "-n", "2", "--no-prefix", "--",
                                 bin("bench_plan_choice"), checkout("examples/quick.toml"), "--smoke"});
  ASSERT_EQ(values.size(), 1u);
  EXPECT_EQ(values[0].at("ranks"), 2);
  EXPECT_GT(values[0].at("chosen").at("measured_s"), 0);
  EXPECT_GE(values[0].at("plans").size(), 2u);
}

TEST(BenchSmoke, WireChannelsGivesLinePerSize) {
  const auto values = values_of({bin("bench_wire_channels"), "--smoke"});
  ASSERT_EQ(values.size(), 10u);
  for (const auto& value : values) EXPECT_GT(value.at("ratio").at("median").get<double>(), 0);
}

TEST(BenchSmoke, SecurityGivesLinePerProofAndStore) {
  const auto values = values_of({bin("bench_security"), "--smoke"});
  ASSERT_EQ(values.size(), 8u);
  for (const auto& value : values) EXPECT_GT(value.at("connect_us").at("median").get<double>(), 0);
}

TEST(BenchSmoke, PsGivesLinePerCase) {
  const auto lines = values_of({bin("trireme"), "bench", "ps", "--smoke", "--json", "--ways", "tcp,shm,tls",
                                "--what", "push,pull,push-pull,latency,scaling,replication"});
  std::map<std::string, int> counts;
  for (const auto& line : lines) {
    ++counts[line.at("what")];
    for (const char* what : {"ratio", "cpu_s_per_gb"})
      EXPECT_TRUE(!line.contains(what) || line.at(what).at("median").get<double>() > 0) << line;
  }
  const std::map<std::string, int> expected = {{"machine", 1},    {"push", 6},    {"pull", 6},
                                               {"push-pull", 6},  {"latency", 3}, {"scaling", 12},
                                               {"replication", 3}};
  EXPECT_EQ(counts, expected);
}

TEST(BenchSmoke, PsMeasuresRowsInChannelsAndStorage) {
  const auto lines = values_of({bin("bench_ps"), "--smoke", "--json", "--ways", "unix", "--what", "sparse"});
  ASSERT_EQ(lines.size(), 6U);  // the machine, one transport, and one line per rule
  for (const auto& line : std::span(lines).subspan(1))
    EXPECT_GT(line.at("push_million_rows_per_s").at("median").get<double>(), 0) << line;
}

TEST(BenchSmoke, PsMeasuresPauseAfterServerDeath) {
  const auto lines = values_of({bin("bench_ps"), "--smoke", "--json", "--what", "recovery"});
  ASSERT_EQ(lines.size(), 2U);  // the machine, and the pause
  EXPECT_GT(lines[1].at("longest_pause_ms").at("median").get<double>(), 0);
}

TEST(BenchSmoke, PsNamesItsPartsAndWays) {
  const ChildResult what = run({bin("trireme"), "bench", "ps", "--what", "pus"});
  EXPECT_EQ(what.exit_code, 2);
  EXPECT_THAT(what.err, testing::HasSubstr("there is no part 'pus' (did you mean 'push'?)"));
  const ChildResult way = run({bin("trireme"), "bench", "ps", "--ways", "tcp,rdma"});
  EXPECT_EQ(way.exit_code, 2);
  EXPECT_THAT(way.err, testing::HasSubstr("there is no way 'rdma'"));
  const ChildResult batch = run({bin("trireme"), "bench", "ps", "--batch", "4"});
  EXPECT_EQ(batch.exit_code, 2);
  EXPECT_THAT(batch.err,
              testing::HasSubstr("--batch is an option of pipeline-resnet50, rpc-resnet50; ps has none"));
}

TEST(BenchSmoke, PsSparseGivesALinePerRule) {
  const auto values = values_of({bin("bench_ps_sparse"), "--smoke"});
  ASSERT_EQ(values.size(), 4u);
  for (const auto& value : values) EXPECT_GT(value.at("push_over_map").at("median").get<double>(), 0);
}

TEST(BenchSmoke, RpcCallsGivesLinePerCase) {
  const auto values = values_of({bin("bench_rpc_calls"), "--smoke"});
  ASSERT_EQ(values.size(), 10u);
  for (const auto& value : values) {
    EXPECT_GT(value.at("median_us").get<double>(), 0);
    EXPECT_GT(value.at("calls_per_s").get<double>(), 0);
  }
}

TEST(BenchSmoke, RpcResnet50RunsAndWritesItsPage) {
  const TemporaryFolder folder;
  const std::string report = (folder / "report.html").string();
  const auto result = run({bin("trireme"), "bench", "rpc-resnet50", "--smoke", "--json", "--report", report});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, testing::HasSubstr("\"splits\": 2"));
  const std::string page = read_file(report);
  EXPECT_THAT(page, testing::HasSubstr("<th>images/s</th>"));
  EXPECT_THAT(page, testing::HasSubstr(">micro-batches</text>"));
  EXPECT_THAT(page, testing::Not(testing::HasSubstr("step</text>")));
}

TEST(BenchSmoke, AutopsyCountsRightRanksAndCauses) {
  const auto values = values_of({bin("bench_autopsy"), "--smoke"});
  ASSERT_EQ(values.size(), 1u);
  EXPECT_EQ(values[0].at("right_rank"), 1);
  EXPECT_EQ(values[0].at("right_cause"), 1);
}

TEST(BenchSmoke, StepOverheadGivesARatio) {
  const auto values = values_of({bin("bench_step_overhead"), "--smoke"});
  ASSERT_EQ(values.size(), 1u);
  EXPECT_GT(values[0].at("ratio").get<double>(), 0);
}

TEST(BenchSmoke, ProductBitsCountsCasesOfShapes) {
  const auto values = values_of({bin("bench_product_bits"), "--smoke"});
  ASSERT_EQ(values.size(), 6u);
  for (const auto& value : values) {
    EXPECT_EQ(value.at("alignments").get<int>(), 108);
    EXPECT_EQ(value.at("alignments_of_result").get<int>(), 18);
    EXPECT_LE(value.at("differ_by_threads").get<int>(), value.at("orders").get<int>());
  }
}

TEST(BenchSmoke, ConvolutionGivesLinePerShapeAndKernel) {
  const auto values = values_of({bin("bench_convolution"), "--smoke"});
  ASSERT_GT(values.size(), 3u);
  for (const auto& value : values) EXPECT_GT(value.at("aten_over_it").get<double>(), 0);
}

TEST(BenchSmoke, PackedDataGivesLinePerCase) {
  const auto values = values_of({bin("bench_packed_data"), "--smoke"});
  ASSERT_EQ(values.size(), 4u);
  EXPECT_GT(values[1].at("packed_samples_per_s").get<double>(), 0);
  EXPECT_GT(values[2].at("packed_mb_per_s").get<double>(), 0);
  EXPECT_GT(values[2].at("packed_from_disk_mb_per_s").get<double>(), 0);
  EXPECT_GT(values[3].at("packed_samples_per_s").get<double>(), 0);
}

TEST(BenchSmoke, SplitBackwardGivesALinePerStage) {
  const auto values = values_of({bin("bench_split_backward"), "--smoke"});
  ASSERT_EQ(values.size(), 5u);
  for (const auto& value : values) EXPECT_GT(value.at("parts_over_whole").get<double>(), 0);
}

TEST(BenchSmoke, ActivationMemoryGivesALinePerWay) {
  const auto values = values_of({bin("bench_activation_memory"), "--smoke"});
  ASSERT_EQ(values.size(), 3u);
  for (const auto& value : values) EXPECT_GT(value.at("time_over_kept").get<double>(), 0);
}

TEST(BenchSmoke, ExecutorGivesMicrosecondsPerAction) {
  const auto values = values_of({bin("bench_executor"), "--smoke"});
  ASSERT_EQ(values.size(), 1u);
  EXPECT_GT(values[0].at("executor_us").get<double>(), 0);
  EXPECT_GT(values[0].at("pipeline_us").get<double>(), values[0].at("executor_us").get<double>());
}

TEST(BenchSmoke, PipelineMemoryGivesARatioPerRank) {
  const auto values = values_of(
      {bin("trireme"), "launch", "-n", "2", "--no-prefix", "--", bin("bench_pipeline_memory"), "--smoke"});
  ASSERT_EQ(values.size(), 1u);
  ASSERT_EQ(values[0].at("ranks").size(), 2u);
  for (const auto& rank : values[0].at("ranks")) EXPECT_GT(rank.at("ratio").get<double>(), 0);
}

TEST(BenchSmoke, OptimizerStepGivesALinePerOptimizer) {
  const auto values = values_of({bin("bench_optimizer_step"), "--smoke"});
  ASSERT_EQ(values.size(), 9u);
  for (const auto& value : values) EXPECT_GT(value.at("step_ms").get<double>(), 0);
}

TEST(BenchSmoke, TrainingStepRunsOnTwoRanks) {
  const auto values = values_of(
      {bin("trireme"), "launch", "-n", "2", "--no-prefix", "--", bin("bench_training_step"), "--smoke"});
  ASSERT_EQ(values.size(), 1u);
  EXPECT_EQ(values[0].at("ranks"), 2);
  EXPECT_GT(values[0].at("samples_per_s").get<double>(), 0);
}

TEST(BenchSmoke, CheckpointMeasuresDiskAndBlockedTime) {
  const TemporaryFolder folder;
  const auto values =
      values_of({bin("bench_checkpoint"), "--smoke", "--folder", (folder / "bench").string()});
  ASSERT_EQ(values.size(), 6u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_GT(values[i].at("gb_per_s").get<double>(), 0);
  EXPECT_TRUE(values[4].at("asynchronous"));
  EXPECT_GT(values[5].at("stalled_s").get<double>(), 0);
}

TEST(BenchSmoke, CheckpointShardsChangeNumberOfRanks) {
  const TemporaryFolder folder;
  const auto values = [&](int num_ranks, const char* work, const char* cut) {
    return values_of({bin("trireme"), "launch", "-n", std::to_string(num_ranks), "--no-prefix", "--",
                      bin("bench_checkpoint_shards"), "--smoke", "--work", work, "--cut", cut, "--folder",
                      (folder / "bench").string()});
  };
  EXPECT_EQ(values(4, "save", "rows").size(), 4u);
  EXPECT_EQ(values(1, "load", "names").size(), 1u);
  EXPECT_EQ(values(3, "load", "columns").size(), 3u);
}

TEST(BenchSmoke, PipelineStepRunsOnTwoRanks) {
  const auto values = values_of({bin("trireme"), "launch", "-n", "2", "--no-prefix", "--",
                                 bin("bench_pipeline_step"), "--smoke", "--schedule", "interleaved-1f1b"});
  ASSERT_EQ(values.size(), 1u);
  EXPECT_GT(values[0].at("step_ms").get<double>(), 0);
}

TEST(BenchSmoke, PipelineResnet50ComparesEveryWay) {
  const TemporaryFolder folder;
  const auto path = [&](const char* name) { return (folder / name).string(); };
  const auto values = values_of({bin("trireme"), "bench", "pipeline-resnet50", "--smoke", "--json",
                                 "--report", path("report.html"), "--timeline", path("timeline.html")});
  ASSERT_EQ(values.size(), 1u);
  const nlohmann::json& results = values[0].at("results");
  ASSERT_EQ(results.size(), 4u);
  EXPECT_EQ(results[0].at("way"), "single");
  EXPECT_EQ(results[1].at("way"), "naive");
  for (std::size_t i = 1; i < results.size(); ++i) {
    EXPECT_GT(results[i].at("of_the_ideal").get<double>(), 0);
    EXPECT_EQ(results[i].at("stages").size(), 2u);
  }
  const std::string page = read_file(folder / "report.html");
  EXPECT_THAT(page, testing::HasSubstr("one process"));
  EXPECT_THAT(page, testing::HasSubstr("<polyline class=\"line"));
  EXPECT_THAT(read_file(folder / "timeline.html"), testing::HasSubstr("<title>1B0: "));
}

/// A folder that precedes all others in PATH.
class BenchScripts : public testing::Test {
 protected:
  void add(const std::string& name, const std::string& script) {
    write_file_atomic(programs_ / name, "#!/bin/sh\n" + script + "\n");
    std::filesystem::permissions(programs_ / name, std::filesystem::perms::owner_all);
  }
  ChildResult run_script(const std::string& name, const std::map<std::string, std::string>& variables = {}) {
    std::map<std::string, std::string> all = variables;
    all["PATH"] = programs_.path().string() + ":" + std::getenv("PATH");
    all["TRIREME_BUILD"] = build_folder();
    return run({checkout("bench/") + name, "--smoke"}, all, 60);
  }
  const TemporaryFolder programs_;
};

TEST_F(BenchScripts, AllReduceExplainsMissingMpiComparison) {
  add("mpicc", "echo 'x.c:1: fatal error: mpi.h: No such file or directory' >&2; exit 1");
  add("mpirun", "exit 1");
  const ChildResult result = run_script("allreduce.sh");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, testing::HasSubstr("no comparison with Open MPI: mpicc cannot compile"));
  EXPECT_THAT(result.err, testing::HasSubstr("mpi.h: No such file"));
  EXPECT_THAT(result.out, testing::HasSubstr("shm in place"));
}

TEST_F(BenchScripts, RejectsPeerPythonWithoutTorchBeforeMeasuring) {
  add("no_torch", "exit 1");
  for (const char* script : {"checkpoint.sh", "optimizer_step.sh", "pipeline_step.sh", "resnet50_step.sh",
                             "rpc_calls.sh", "training_step.sh", "zero_step.sh"}) {
    const ChildResult result = run_script(script, {{"PEER_PYTHON", programs_ / "no_torch"}});
    EXPECT_EQ(result.exit_code, 2) << script;
    EXPECT_THAT(result.err, testing::HasSubstr("cannot import torch and numpy"));
    EXPECT_EQ(result.out, "") << script;
  }
}

TEST_F(BenchScripts, NamesProgramThatIsNotBuilt) {
  const ChildResult result = run({checkout("bench/allreduce.sh")}, {{"TRIREME_BUILD", "/nowhere"}}, 60);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, testing::HasSubstr("missing in /nowhere/bin: bench_allreduce"));
}

}  // namespace
}  // namespace trireme::test
