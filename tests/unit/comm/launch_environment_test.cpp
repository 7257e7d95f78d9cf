#include "trireme/comm/launch_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

using Variables = std::map<std::string, std::string>;
using testing::HasSubstr;

LaunchEnvironment read(const Variables& variables) {
  return read_launch_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

struct Good {
  const char* name;
  Variables variables;
  const char* launcher;
  int rank, world_size, local_rank, local_world_size;
  const char* master_addr;
};

class Understood : public testing::TestWithParam<Good> {};

TEST_P(Understood, Launcher) {
  const Good& expected = GetParam();
  const auto found = read(expected.variables);
  EXPECT_EQ(found.launcher, expected.launcher);
  EXPECT_EQ(found.rank, expected.rank);
  EXPECT_EQ(found.world_size, expected.world_size);
  EXPECT_EQ(found.local_rank, expected.local_rank);
  EXPECT_EQ(found.local_world_size, expected.local_world_size);
  EXPECT_EQ(found.master_addr, expected.master_addr);
}

INSTANTIATE_TEST_SUITE_P(
    LaunchEnvironment, Understood,
    testing::Values(Good{"Nothing", {}, "none", 0, 1, 0, 1, "127.0.0.1"},
                    Good{"RankOnly",
                         {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.1"}},
                         "env",
                         1,
                         4,
                         1,
                         4,
                         "10.0.0.1"},
                    Good{"LocalRanks",
                         {{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "n1"},
                          {"MASTER_PORT", "1234"}},
                         "env",
                         5,
                         8,
                         1,
                         4,
                         "n1"},
                    Good{"Torchrun",
                         {{"RANK", "0"},
                          {"WORLD_SIZE", "2"},
                          {"LOCAL_RANK", "0"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "localhost"},
                          {"TORCHELASTIC_RUN_ID", "x"}},
                         "torchrun",
                         0,
                         2,
                         0,
                         2,
                         "localhost"},
                    Good{"OpenMpiOnOneHost",
                         {{"OMPI_COMM_WORLD_RANK", "1"},
                          {"OMPI_COMM_WORLD_SIZE", "2"},
                          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
                         "openmpi",
                         1,
                         2,
                         1,
                         2,
                         "127.0.0.1"},
                    Good{"Srun",
                         {{"SLURM_PROCID", "4"},
                          {"SLURM_NTASKS", "5"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "2"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                          {"SLURM_JOB_ID", "77"},
                          {"SLURM_STEP_NODELIST", "n[01-02,7]"}},
                         "slurm",
                         4,
                         5,
                         0,
                         1,
                         "n01"},
                    Good{"SrunBeforeMoreNodesThanThereAre",
                         {{"SLURM_PROCID", "4"},
                          {"SLURM_NTASKS", "5"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "2"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1(x1048576)"},
                          {"MASTER_ADDR", "n01"}},
                         "slurm",
                         4,
                         5,
                         0,
                         1,
                         "n01"},
                    Good{"SrunWithPlainNodes",
                         {{"SLURM_PROCID", "0"},
                          {"SLURM_NTASKS", "2"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_NTASKS_PER_NODE", "1"},
                          {"SLURM_STEP_NODELIST", "alpha,beta[1-2]"}},
                         "slurm",
                         0,
                         2,
                         0,
                         1,
                         "alpha"},
                    Good{"ShellOfSallocIsAlone",  // its step has one task, its allocation three
                         {{"SLURM_PROCID", "0"},
                          {"SLURM_NTASKS", "3"},
                          {"SLURM_NPROCS", "3"},
                          {"SLURM_TASKS_PER_NODE", "3"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "0"},
                          {"SLURM_STEP_ID", "4294967290"},
                          {"SLURM_STEP_NUM_TASKS", "1"},
                          {"SLURM_STEP_TASKS_PER_NODE", "1"},
                          {"SLURM_STEP_NODELIST", "one"},
                          {"SLURM_JOB_ID", "4"}},
                         "slurm",
                         0,
                         1,
                         0,
                         1,
                         "127.0.0.1"},
                    Good{"SrunInTheShellOfSalloc",
                         {{"SLURM_PROCID", "1"},
                          {"SLURM_NTASKS", "2"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "0"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_STEP_NUM_TASKS", "2"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2"},
                          {"SLURM_STEP_NODELIST", "one"},
                          {"SLURM_JOB_ID", "4"}},
                         "slurm",
                         1,
                         2,
                         1,
                         2,
                         "127.0.0.1"},
                    Good{"SlurmBatchScriptIsAlone",
                         {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "7"}},
                         "none",
                         0,
                         1,
                         0,
                         1,
                         "127.0.0.1"}),
    [](const auto& test) { return test.param.name; });

struct Bad {
  const char* name;
  Variables variables;
  std::vector<std::string> said;
};

class Rejected : public testing::TestWithParam<Bad> {};

TEST_P(Rejected, ErrorNamesTheVariableAndItsValue) {
  try {
    read(GetParam().variables);
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    for (const auto& part : GetParam().said) EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

INSTANTIATE_TEST_SUITE_P(
    LaunchEnvironment, Rejected,
    testing::Values(
        Bad{"RankAlone", {{"RANK", "1"}}, {"WORLD_SIZE", "is not set"}},
        Bad{"SizeAlone", {{"WORLD_SIZE", "2"}}, {"RANK", "is not set"}},
        Bad{"NotANumber", {{"RANK", "one"}, {"WORLD_SIZE", "2"}}, {"RANK", "'one'", "whole number"}},
        Bad{"RankTooLarge",
            {{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}},
            {"RANK", "2", "below the world size"}},
        Bad{"NoMaster", {{"RANK", "0"}, {"WORLD_SIZE", "2"}}, {"MASTER_ADDR", "not set"}},
        Bad{"PortTooLarge",
            {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}},
            {"MASTER_PORT", "70000", "65535"}},
        Bad{"OpenMpiOverHosts",
            {{"OMPI_COMM_WORLD_RANK", "1"},
             {"OMPI_COMM_WORLD_SIZE", "4"},
             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
            {"MASTER_ADDR", "mpirun -x"}},
        Bad{"SlurmTasks",
            {{"SLURM_PROCID", "0"},
             {"SLURM_NTASKS", "2"},
             {"SLURM_LOCALID", "0"},
             {"SLURM_STEP_ID", "0"},
             {"SLURM_STEP_TASKS_PER_NODE", "2(y3)"}},
            {"SLURM_STEP_TASKS_PER_NODE", "2(y3)"}},
        Bad{"SlurmTasksOnFewerThanNoNodes",
            {{"SLURM_PROCID", "0"},
             {"SLURM_NTASKS", "2"},
             {"SLURM_LOCALID", "0"},
             {"SLURM_NODEID", "1"},
             {"SLURM_STEP_ID", "0"},
             {"SLURM_STEP_TASKS_PER_NODE", "1(x-5),2"}},
            {"'1(x-5),2'", "expected task counts"}},
        Bad{"SlurmTasksWithoutTheirBracket",
            {{"SLURM_PROCID", "0"},
             {"SLURM_NTASKS", "2"},
             {"SLURM_LOCALID", "0"},
             {"SLURM_NODEID", "1"},
             {"SLURM_STEP_ID", "0"},
             {"SLURM_STEP_TASKS_PER_NODE", "2(x3Z"}},
            {"'2(x3Z'", "expected task counts"}},
        Bad{"SlurmTasksOnNodesBeyondCounting",
            {{"SLURM_PROCID", "0"},
             {"SLURM_NTASKS", "2"},
             {"SLURM_LOCALID", "0"},
             {"SLURM_NODEID", "1"},
             {"SLURM_STEP_ID", "0"},
             {"SLURM_STEP_TASKS_PER_NODE", "1,1(x2147483647)"}},
            {"'1,1(x2147483647)'", "expected task counts"}}),
    [](const auto& test) { return test.param.name; });

TEST(LaunchEnvironment, JobHasOnePortAndJobsDiffer) {
  Variables job{{"OMPI_COMM_WORLD_RANK", "0"},
                {"OMPI_COMM_WORLD_SIZE", "2"},
                {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                {"PMIX_NAMESPACE", "prterun-1"}};
  const int port = read(job).master_port;
  job["OMPI_COMM_WORLD_RANK"] = job["OMPI_COMM_WORLD_LOCAL_RANK"] = "1";
  EXPECT_EQ(read(job).master_port, port);
  job["PMIX_NAMESPACE"] = "prterun-2";
  EXPECT_NE(read(job).master_port, port);
}

TEST(LaunchEnvironment, FindsTheHostOfTheStore) {
  Variables variables{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29501"}};
  EXPECT_EQ(read(variables).store_host, StoreHost::kRankZero);
  variables["TRIREME_STORE"] = "node1:29500";
  EXPECT_EQ(read(variables).store_host, StoreHost::kLauncher);
  EXPECT_EQ(read(variables).master_addr, "node1");
  EXPECT_EQ(read(variables).master_port, 29500);
  variables["TORCHELASTIC_RUN_ID"] = "x";  // torchrun as a rank of `trireme launch`: another world
  EXPECT_EQ(read(variables).store_host, StoreHost::kRankZero);
  EXPECT_EQ(read(variables).master_addr, "node0");
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(read(variables).store_host, StoreHost::kRankZeroAtPort);
}

TEST(LaunchEnvironment, TrustsLauncherOnlyAboutOneHost) {
  Variables variables{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node0"}};
  EXPECT_FALSE(read(variables).one_host);
  variables["LOCAL_WORLD_SIZE"] = "2";
  EXPECT_TRUE(read(variables).one_host);
  variables["LOCAL_WORLD_SIZE"] = "1";
  EXPECT_FALSE(read(variables).one_host);
  const Variables slurm{
      {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "0"}, {"SLURM_STEP_ID", "0"}};
  EXPECT_FALSE(read(slurm).one_host);
}

TEST(LaunchEnvironment, HoldsTheSecretOfTheJob) {
  Variables variables{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node0"}};
  EXPECT_TRUE(read(variables).secret.empty());
  variables["TRIREME_SECRET"] = "sixteen-and-more-characters";
  EXPECT_EQ(read(variables).secret.reveal(), "sixteen-and-more-characters");
  variables["TRIREME_SECRET"] = "short";
  EXPECT_THROW(read(variables), InvalidArgument);
}

TEST(LaunchEnvironment, CountsRestarts) {
  EXPECT_EQ(read({{"RANK", "0"},
                  {"WORLD_SIZE", "2"},
                  {"MASTER_ADDR", "127.0.0.1"},
                  {"TORCHELASTIC_RESTART_COUNT", "3"}})
                .restart_count,
            3);
}

}  // namespace
}  // namespace trireme::comm
