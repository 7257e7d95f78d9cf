// `trireme plan FILE.toml` over processes. It measures once, and a run uses the printed plan.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class PlanOverRanks : public testing::Test {
 protected:
  ChildResult trireme(const std::vector<std::string>& words) const {
    std::vector<std::string> command = {"/usr/bin/env", "XDG_CACHE_HOME=" + (folder_ / "cache").string(),
                                        bin("trireme")};
    command.insert(command.end(), words.begin(), words.end());
    return run(command);
  }
  ChildResult plan(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"plan", checkout("examples/quick.toml")};
    if (std::ranges::find(more, "-n") == more.end()) words.insert(words.end(), {"-n", "2"});
    words.insert(words.end(), more.begin(), more.end());
    return trireme(words);
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  const TemporaryFolder folder_;
};

TEST_F(PlanOverRanks, MeasuresOnceAndFindsTheSameAgain) {
  const ChildResult first = plan({"--json", "--save", path("costs.json"), "--page", path("plans.html")});
  ASSERT_EQ(first.exit_code, kExitOk) << first.err;
  const json found = json::parse(first.out);
  EXPECT_GT(found.at("plans").size(), 5U);
  EXPECT_THAT(read_file(path("plans.html")), AllOf(HasSubstr("</html>"), HasSubstr("Time against memory")));

  const ChildResult again = plan({"--json"});
  ASSERT_EQ(again.exit_code, kExitOk) << again.err;
  EXPECT_THAT(again.err, HasSubstr("--measure measures again"));
  EXPECT_EQ(json::parse(again.out).at("plans"), found.at("plans"));
  EXPECT_EQ(json::parse(plan({"--json", "--measurements", path("costs.json")}).out).at("plans"),
            found.at("plans"));

  const ChildResult other = plan({"--json", "--set", "train.clip_norm=0"});
  EXPECT_THAT(other.err, Not(HasSubstr("measured on this machine before"))) << "it decides the update's cost";
}

TEST_F(PlanOverRanks, TheFastestPlansAreRunOnRequest) {
  const ChildResult first = plan({"--check", "--json"});
  ASSERT_EQ(first.exit_code, kExitOk) << first.err;
  const json found = json::parse(first.out);
  const json& checked = found.at("checked");
  ASSERT_GE(checked.size(), 3U);
  bool has_data_parallelism = false;
  for (std::size_t i = 0; i < checked.size(); ++i) {
    const json& settings = checked[i].at("settings");
    has_data_parallelism = has_data_parallelism || (settings.value("parallel.data", "") == "2" &&
                                                    settings.value("parallel.zero", "0") == "0");
    if (i < 3) {
      EXPECT_EQ(checked[i].at("plan"), found.at("plans")[i].at("plan"));
      EXPECT_EQ(checked[i].at("step_s"), found.at("plans")[i].at("step_s"));
    }
    EXPECT_GT(checked[i].at("measured_step_s"), 0.0);
    EXPECT_GT(checked[i].at("measured_tensor_bytes"), 0);
  }
  EXPECT_TRUE(has_data_parallelism) << first.out;
  // Even with cached costs, ranks are started.
  const ChildResult again = plan({"--check"});
  ASSERT_EQ(again.exit_code, kExitOk) << again.err;
  EXPECT_THAT(again.err, HasSubstr("--measure measures again"));
  EXPECT_THAT(again.out, HasSubstr("checked: the fastest plans and data parallelism, run for some steps"));
  const ChildResult keys = plan({"--check", "--toml"});
  EXPECT_THAT(keys.out, HasSubstr("planned_step_s")) << keys.err;

  const ChildResult too_large = plan({"--check", "--memory", "0.0001"});
  EXPECT_EQ(too_large.exit_code, kExitOk) << too_large.err;
  EXPECT_THAT(too_large.out, AllOf(HasSubstr("no plan fits into"), Not(HasSubstr("checked:"))));
}

TEST_F(PlanOverRanks, ExplicitPlanSwitchesAutomaticPlanOff) {
  const std::string config = read_file(checkout("examples/quick.toml"));
  write_file_atomic(path("run.toml"), config + "\n[parallel]\nplan = \"auto\"\n");
  write_file_atomic(path("plan.toml"), "[parallel]\npipeline = 2\nmicrobatches = 2\n");
  const ChildResult result = trireme({"train", path("run.toml"), "-n", "2", "--plan", path("plan.toml"),
                                      "--set", "run.folder=" + folder_.path().string(), "--set",
                                      "run.name=named", "--set", "train.max_steps=3"});
  ASSERT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "named" / "plan.toml")) << "nothing was searched";
  EXPECT_THAT(read_file(folder_ / "named" / "config.toml"),
              AllOf(HasSubstr("pipeline = 2"), HasSubstr("plan = \"none\"")));
}

/// As `trireme topology --json` prints it, of `ranks` ranks on hosts of `of_host`.
std::string links_of(int ranks, int of_host, double bytes_per_s_between) {
  json hosts = json::array(), links = json::array(), host_of_rank = json::array();
  for (int host = 0; host < ranks / of_host; ++host)
    hosts.push_back({{"name", text("node", host)},
                     {"sockets", 1},
                     {"numa_nodes", 1},
                     {"cores", 2},
                     {"threads", 2},
                     {"usable", 2},
                     {"caches", json::array()},
                     {"interfaces", json::array()}});
  for (int from = 0; from < ranks; ++from) {
    host_of_rank.push_back(from / of_host);
    for (int to = 0; to < ranks; ++to) {
      const bool is_one_host = from / of_host == to / of_host;
      if (from != to)
        links.push_back({{"from", from},
                         {"to", to},
                         {"alpha_s", 1e-5},
                         {"bytes_per_s", is_one_host ? 1e10 : bytes_per_s_between}});
    }
  }
  return json({{"hosts", hosts},
               {"host_of_rank", host_of_rank},
               {"links", links},
               {"sum_bytes_per_s", 1e9},
               {"probe_s", 0.1}})
      .dump();
}

TEST_F(PlanOverRanks, GivenLinksReplaceMeasuredOnes) {
  ASSERT_EQ(plan({"--save", path("costs.json")}).exit_code, kExitOk);
  write_file_atomic(path("fast.json"), links_of(4, 2, 1e10));
  write_file_atomic(path("slow.json"), links_of(4, 2, 1e6));
  // Four ranks, which no process starts.
  const auto best_s = [&](const std::string& file) {
    const ChildResult found = plan({"-n", "4", "--set", "parallel.pipeline=1", "--measurements",
                                    path("costs.json"), "--links", path(file), "--json"});
    EXPECT_THAT(found.err, HasSubstr("2 hosts of 2 ranks: 10 us and 10 GB/s within a host, "));
    const json first = json::parse(found.out).at("plans").at(0);
    return first.at("step_s").get<double>();
  };
  EXPECT_GT(best_s("slow.json"), 2 * best_s("fast.json"));

  const ChildResult started = plan({"--links", path("slow.json"), "--measure", "--json"});
  ASSERT_EQ(started.exit_code, kExitOk) << started.err;
  EXPECT_THAT(started.err, HasSubstr("1 host of 2 ranks: 10 us and 10 GB/s within a host\n"));
}

TEST_F(PlanOverRanks, BrokenLinksAreNamedBeforeTheStart) {
  const auto error = [&](const std::string& content, const std::vector<std::string>& more = {}) {
    write_file_atomic(path("links.json"), content);
    std::vector<std::string> words = {"--links", path("links.json")};
    words.insert(words.end(), more.begin(), more.end());
    const ChildResult found = plan(words);
    EXPECT_NE(found.exit_code, kExitOk);
    EXPECT_THAT(found.err, Not(HasSubstr("rank 1"))) << "no rank is started";
    return found.err;
  };
  EXPECT_THAT(error("{"), AllOf(HasSubstr("links.json is not what 'trireme topology --json' prints"),
                                HasSubstr("write it with trireme topology -n N --json > FILE")));
  EXPECT_THAT(error(links_of(2, 2, 1), {"-n", "4"}),
              HasSubstr("links.json has the links of 2 ranks, and -n is 4; measure 4 ranks"));
  EXPECT_THAT(error(links_of(4, 2, 1), {"-n", "3"}), HasSubstr("expected as many on each host"));
  EXPECT_THAT(error(links_of(2, 2, 1), {"-n", "1"}), HasSubstr("1 rank uses no link"));
}

using SecurityPlans = PlanOverRanks;

TEST_F(SecurityPlans, ForeignFileIsReadUpToLimit) {
  const auto train = [&](const std::string& plan) {
    write_file_atomic(path("plan.toml"), plan);
    return trireme({"train", checkout("examples/quick.toml"), "-n", "2", "--plan", path("plan.toml"), "--set",
                    "train.max_steps=1", "--set", "run.name=named"});
  };
  const ChildResult moved = train(text("[run]\nfolder = \"", path("elsewhere"), "\"\n"));
  EXPECT_EQ(moved.exit_code, kExitUsage) << moved.err;
  EXPECT_THAT(moved.err, HasSubstr("the key 'run.folder' is not one that a planner decides"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "elsewhere"));
  const ChildResult large = train(std::string(5 << 20, '\n'));
  EXPECT_EQ(large.exit_code, kExitData) << large.err;
  EXPECT_THAT(large.err, HasSubstr("is not a plan: it has more than 4194304 bytes"));
}

TEST_F(PlanOverRanks, RanksOfHostShareItsMemory) {
  ASSERT_EQ(plan({"--save", path("costs.json")}).exit_code, kExitOk);
  const auto limit = [&] {
    return json::parse(plan({"--json", "--measurements", path("costs.json")}).out)
        .at("limit_bytes")
        .get<double>();
  };
  const double of_two = limit();
  json costs = json::parse(read_file(path("costs.json")));
  for (json& form : costs.at("forms")) form["ranks_of_host"] = 1;
  write_file_atomic(path("costs.json"), costs.dump());
  EXPECT_GT(limit(), 1.5 * of_two) << "each rank has a host of its own";
}

TEST_F(PlanOverRanks, TooLittleMemoryNamesSmallestPlan) {
  const ChildResult found = plan({"--memory", "0.001"});
  EXPECT_EQ(found.exit_code, kExitOk) << found.err;
  EXPECT_THAT(found.out, AllOf(HasSubstr("no plan fits into 1.0 MiB per rank"), HasSubstr("more on rank"),
                               HasSubstr("without tensors, so that no change makes it fit")));
  const ChildResult keys = plan({"--memory", "0.001", "--toml"});
  EXPECT_EQ(keys.exit_code, kExitUsage);
  EXPECT_THAT(keys.err, HasSubstr("no plan fits"));
}

TEST_F(PlanOverRanks, TooLittleMemoryNamesCheapestWay) {
  constexpr std::int64_t kMissing = 2 << 20;  // of the optimizer's 7 MB and more
  const std::vector<std::string> model = {
      "--set", "model.hidden=[1024,1024]", "--set", "optimizer.name=adamw", "--set", "offload.part_mib=0.25"};
  const auto planned = [&](std::vector<std::string> more) {
    more.insert(more.end(), model.begin(), model.end());
    return plan(more);
  };
  const ChildResult measured = planned({"--save", path("measured.json"), "--memory", "0.05"});
  ASSERT_EQ(measured.exit_code, kExitOk) << measured.err;
  EXPECT_THAT(measured.out, HasSubstr("optimizer state in files, ")) << "the smallest plan";
  json costs = json::parse(read_file(path("measured.json")));
  for (json& form : costs.at("forms")) form.at("update_in_files") = {{"fixed_s", 0}, {"unit_s", 0}};
  write_file_atomic(path("costs.json"), costs.dump());
  const json found =
      json::parse(planned({"--measurements", path("costs.json"), "--memory", "0.05", "--json"}).out);
  ASSERT_TRUE(found.at("plans").empty());
  const double smallest = found.at("too_large").at(0).at("memory_bytes").get<double>();
  const std::string gib = text((smallest - kMissing) / 0x1p30);
  const ChildResult told = planned({"--measurements", path("costs.json"), "--memory", gib});
  EXPECT_THAT(told.out, AllOf(HasSubstr("2.0 MiB more"), HasSubstr("changes that make it fit, the cheapest"),
                              HasSubstr("offload.optimizer = \"files\""), HasSubstr("-n 4"),
                              HasSubstr(">: without the time of disks")));
  const json ways =
      json::parse(planned({"--measurements", path("costs.json"), "--memory", gib, "--json"}).out)
          .at("ways_to_fit");
  for (const json& way : ways) {
    EXPECT_GT(way.at("freed_bytes").get<double>(), 0) << way;
    EXPECT_EQ(way.at("fits").get<bool>(), way.at("memory_bytes").get<double>() <= smallest - kMissing) << way;
  }
}

}  // namespace
}  // namespace trireme::test
