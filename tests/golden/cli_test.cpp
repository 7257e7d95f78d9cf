// Output of the programs: help texts and rejections, word for word.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/golden/golden_text.h"
#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"

namespace trireme::test {
namespace {

TEST(CliHelp, IsTheGoldenText) {
  EXPECT_EQ(run({bin("trireme"), "--help"}).out, golden("help"));
  EXPECT_EQ(run({bin("trireme"), "launch", "--help"}).out, golden("help_launch"));
  EXPECT_EQ(run({bin("trireme"), "train", "--help"}).out, golden("help_train"));
  EXPECT_EQ(run({bin("trireme"), "verify", "--help"}).out, golden("help_verify"));
  EXPECT_EQ(run({bin("trireme"), "checkpoint", "--help"}).out, golden("help_checkpoint"));
  EXPECT_EQ(run({bin("trireme"), "data", "--help"}).out, golden("help_data"));
  EXPECT_EQ(run({bin("trireme"), "runs", "--help"}).out, golden("help_runs"));
  EXPECT_EQ(run({bin("trireme"), "autopsy", "--help"}).out, golden("help_autopsy"));
  EXPECT_EQ(run({bin("trireme"), "top", "--help"}).out, golden("help_top"));
  EXPECT_EQ(run({bin("trireme"), "plan", "--help"}).out, golden("help_plan"));
  EXPECT_EQ(run({bin("trireme"), "profile", "--help"}).out, golden("help_profile"));
  EXPECT_EQ(run({bin("trireme"), "memory", "--help"}).out, golden("help_memory"));
  EXPECT_EQ(run({bin("trireme"), "estimate", "--help"}).out, golden("help_estimate"));
  EXPECT_EQ(run({bin("trireme"), "find-batch", "--help"}).out, golden("help_find_batch"));
  EXPECT_EQ(run({bin("trireme"), "bench", "--help"}).out, golden("help_bench"));
}

/// A folder with a completed run, a killed run, and a folder that is no run. All times are fixed.
class CliRuns : public testing::Test {
 protected:
  CliRuns() {
    const std::string config =
        "[run]\nname = \"quick\"\n[data]\nname = \"synthetic\"\n[model]\nname = \"mlp\"\n";
    write("quick", "config.toml", config + "[optimizer]\nlr = 0.1\n");
    write(
        "quick", "summary.json",
        "{\"name\": \"quick\", \"status\": \"completed\", \"test_accuracy\": 0.9123, \"test_loss\": 0.2512,\n"
        " \"train_loss\": 0.2301, \"samples_per_s\": 48711.2, \"world_size\": 2, \"steps\": 128,\n"
        " \"wall_s\": 2.02, \"weights_xxh3\": \"0123456789abcdef\"}");
    write("killed", "config.toml", config + "[optimizer]\nlr = 0.05\n");
    write("killed", "metrics.jsonl",
          "{\"event\":\"step\",\"step\":60,\"loss\":0.4,\"samples_per_s\":50000.0}\n"
          "{\"event\":\"eval\",\"step\":60,\"test_accuracy\":0.9,\"test_loss\":0.3}\n");
    write("notes", "ideas.txt", "more data");
  }

  void write(const std::string& run, const std::string& file, const std::string& content) {
    make_folder(folder_ / "runs" / run);
    write_file_atomic(folder_ / "runs" / run / file, content);
    const auto day = std::chrono::sys_seconds(std::chrono::sys_days(std::chrono::year(2026) / 11 / 21));
    std::filesystem::last_write_time(
        folder_ / "runs" / run / file,
        std::chrono::file_clock::from_sys(day + std::chrono::minutes(num_files_++)));
  }

  ChildResult runs(const std::string& words) {
    return run({"bash", "-c", "cd " + folder_.path().string() + " && " + bin("trireme") + " runs " + words},
               {{"TZ", "UTC"}});
  }

  TemporaryFolder folder_;
  int num_files_ = 0;
};

TEST_F(CliRuns, ListsRunsAndOtherFolders) {
  const auto result = runs("");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, golden("runs"));
}

TEST_F(CliRuns, AreListedSideBySide) {
  const auto result = runs("compare quick runs/killed notes");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, golden("runs_compare"));
}

TEST_F(CliRuns, AreJsonForPrograms) {
  const auto list = nlohmann::json::parse(runs("--json").out);
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[0]["name"], "notes");
  EXPECT_TRUE(list[0].contains("problem"));
  EXPECT_EQ(list[1]["weights_xxh3"], "0123456789abcdef");
  EXPECT_EQ(list[2]["status"], "unfinished");
  EXPECT_EQ(list[2]["test_accuracy"], 0.9);
  const auto both = nlohmann::json::parse(runs("compare quick killed --json").out);
  EXPECT_EQ(both["runs"].size(), 2u);
  EXPECT_EQ(both["settings"]["optimizer.lr"], nlohmann::json({"0.1", "0.05"}));
  EXPECT_EQ(both["outcomes"]["steps"]["differences"], nlohmann::json({0.0, -68.0}));
  EXPECT_TRUE(both["outcomes"]["train_loss"]["values"][1].is_null());
}

TEST_F(CliRuns, MissingFolderIsDataError) {
  const auto result = runs("elsewhere");
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_NE(result.err.find("elsewhere"), std::string::npos) << result.err;
}

/// The standard error of `trireme` for each of these commands, all of which it rejects.
std::string rejections(const std::vector<std::vector<std::string>>& commands) {
  std::string said;
  for (const std::vector<std::string>& words : commands) {
    std::vector<std::string> command = {bin("trireme")};
    command.insert(command.end(), words.begin(), words.end());
    const auto result = run(command);
    EXPECT_EQ(result.exit_code, 2) << words.front();
    said += result.err;
  }
  return said;
}

TEST(CliErrors, AreTheGoldenTexts) {
  EXPECT_EQ(rejections({{"trian"},
                        {"quux"},
                        {"--verbose"},
                        {"launch"},
                        {"launch", "-n", "two", "--", "true"},
                        {"launch", "-n", "0", "--", "true"},
                        {"launch", "--nprok", "2", "--", "true"},
                        {"train"},
                        {"train", "a.toml", "--resum"},
                        {"train", "a.toml", "--timeline", "--set", "lr=1"},
                        {"launch", "-n", "--", "true"},
                        {"checkpoint"},
                        {"checkpoint", "inspec", "a"},
                        {"checkpoint", "verify", "a", "b"},
                        {"checkpoint", "export", "a"},
                        {"checkpoint", "inspect", "a", "--force"},
                        {"checkpoint", "import", "a", "b", "--json"},
                        {"data", "pakc", "a"},
                        {"data", "pack", "a"},
                        {"data", "pack", "a", "b", "--tokens", "u8"},
                        {"data", "pack", "a", "b", "--tokens", "u16", "--jsonl", "text"},
                        {"data", "verify", "a", "b"},
                        {"data", "inspect", "a", "--force"},
                        {"data", "verify", "a", "--set", "data.cache=a"},
                        {"runs", "a", "b"},
                        {"runs", "compare", "a"},
                        {"bench", "allreduc"},
                        {"bench", "allreduce", "--batch", "8"},
                        {"bench", "pipeline-resnet50", "-n", "3"},
                        {"completion", "tcsh"}}),
            golden("errors"));
}

TEST(CliErrors, OfABenchmarkAreTheGoldenTexts) {
  if (!std::filesystem::exists(bin("bench_pipeline_resnet50")))
    GTEST_SKIP() << "the benchmarks are not built";
  EXPECT_EQ(rejections({{"bench", "pipeline-resnet50", "--splits", "5,x"},
                        {"bench", "pipeline-resnet50", "--schedule", "1f1c"},
                        {"bench", "pipeline-resnet50", "--report", "/no/where/r.html"},
                        {"bench", "pipeline-resnet50", "--report", ""}}),
            golden("errors_bench"));
}

TEST(CliCheckpoint, ListsTheTensorsOfAFile) {
  const auto result = run({"bash", "-c",
                           "cd " + checkout("tests/parity/data") + " && " + bin("trireme") +
                               " checkpoint inspect safetensors_python.safetensors"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, golden("checkpoint_inspect"));
}

TEST(CliCompletion, KnowsEveryCommandAndOption) {
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const auto result = run({bin("trireme"), "completion", shell});
    EXPECT_EQ(result.exit_code, 0);
    for (const auto* word : {"train", "launch", "doctor", "bench", "backends", "runs", "compare", "plan",
                             "max-restarts", "resume"}) {
      EXPECT_NE(result.out.find(word), std::string::npos) << shell << " " << word;
    }
  }
  const auto script =
      run({"bash", "-c",
           "source <(" + bin("trireme") +
               " completion bash); COMP_WORDS=(trireme launch --max); COMP_CWORD=2; _trireme; "
               "echo ${COMPREPLY[@]}"});
  EXPECT_EQ(script.out, "--max-restarts\n") << script.err;
}

TEST(CliDoctor, ShowsVariablesThatGpuLibrariesRead) {
  const auto result = run({bin("trireme"), "doctor", "--json"},
                          {{"NCCL_DEBUG", "loud"}, {"CUDA_VISIBLE_DEVICES", "77"}, {"NCCL_IB_HCA", ""}});
  std::map<std::string, nlohmann::json> lines;
  for (const auto& row : nlohmann::json::parse(result.out)) lines[row["subject"]] = row;
  const bool has_gpu = lines["GPUs"]["state"] != "absent";
  for (const auto& [name, value] :
       {std::pair{"NCCL_DEBUG", "loud"}, std::pair{"CUDA_VISIBLE_DEVICES", "77"}}) {
    EXPECT_EQ(lines[name]["state"], has_gpu ? "fails" : "absent") << name;
    EXPECT_NE(lines[name].value("found", "").find(value), std::string::npos) << name;
    EXPECT_EQ(lines[name].value("advice", "").empty(), !has_gpu) << name;
  }
  EXPECT_FALSE(lines.contains("NCCL_IB_HCA")) << "it is not set";
}

TEST(CliDoctor, PrintsReadingsOfGpus) {
  const auto lines_with = [](const std::string& library, const std::string& code) {
    const auto result =
        run({bin("trireme"), "doctor", "--json"}, {{"TRIREME_NVML", library}, {"STAND_IN_NVML_INIT", code}});
    std::map<std::string, nlohmann::json> lines;
    for (const auto& row : nlohmann::json::parse(result.out)) lines[row["subject"]] = row;
    return lines;
  };
  auto lines = lines_with(bin("stand_in_nvml.so"), "0");
  EXPECT_EQ(lines["NVML"]["found"], "driver 550.0.stand-in");
  EXPECT_EQ(lines["GPU 0"]["found"], "Stand-in A: 87 %, 12.0 GiB of 80.0 GiB, 65 C, 311 W");
  EXPECT_EQ(lines["GPU 1"]["state"], "ok");
  lines = lines_with(bin("stand_in_nvml.so"), "18");
  EXPECT_EQ(lines["NVML"]["state"], "slow");
  EXPECT_NE(lines["NVML"].value("found", "").find("version mismatch"), std::string::npos);
  EXPECT_FALSE(lines.contains("GPU 0"));
  lines = lines_with("/nowhere.so", "0");
  EXPECT_NE(lines["NVML"].value("found", "").find("cannot load /nowhere.so"), std::string::npos);
}

TEST(CliBackends, ListsBackendsWithNetworksAndMissingReason) {
  const ChildResult without =
      run({bin("trireme"), "backends", "--json"}, {{"TRIREME_UCX_OBJECT", "/nowhere"}});
  ASSERT_EQ(without.exit_code, 0) << without.err;
  std::map<std::string, std::string> reasons;
  for (const auto& row : nlohmann::json::parse(without.out))
    reasons[row.at("kind").get<std::string>() + " " + row.at("name").get<std::string>()] =
        row.at("unavailable_because");
  EXPECT_EQ(reasons.at("backend gloo"), "");
  EXPECT_EQ(reasons.at("network tcp"), "");
  EXPECT_NE(reasons.at("network ucx").find("cannot load /nowhere"), std::string::npos);
}

TEST(CliErrors, RejectsMissingNetworkBeforeStart) {
  const ChildResult result = run({bin("trireme"), "train", checkout("examples/quick.toml"), "-n", "2",
                                  "--set", "comm.network=ucx", "--set", "run.folder=/nowhere"},
                                 {{"TRIREME_UCX_OBJECT", "/nowhere"}});
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_NE(result.err.find("comm.network"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("cannot load /nowhere"), std::string::npos) << result.err;
}

TEST(CliCompletion, OffersTheNamesThatAnOptionTakes) {
  const auto completed = [](const std::string& words) {
    return run({"bash", "-c",
                "source <(" + bin("trireme") + " completion bash); COMP_WORDS=(trireme " + words +
                    "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _trireme; echo ${COMPREPLY[@]}"})
        .out;
  };
  EXPECT_EQ(completed("simulate --schedule zb-v"), "zb-v\n");
  EXPECT_EQ(completed("schedule 1f1b --format s"), "svg\n");
  EXPECT_EQ(completed("schedule 1f1b --transport buf"), "buffered\n");
  EXPECT_EQ(completed("plan model.csv --method pipedream-"), "pipedream-links\n");
  EXPECT_EQ(completed("train quick.toml --trace ''"), "\n") << "a file: the shell's own";
  for (const std::string shell : {"zsh", "fish"}) {
    const auto script = run({bin("trireme"), "completion", shell}).out;
    EXPECT_NE(script.find("interleaved-1f1b"), std::string::npos) << shell;
    EXPECT_NE(script.find("table csv json svg"), std::string::npos) << shell;
  }
}

/// The completions that bash offers for the last of COMP_WORDS. Like bash, COMP_WORDS treats = as a word of
/// its own.
std::string completed_setting(const std::string& words) {
  return run({"bash", "-c",
              "source <(" + bin("trireme") + " completion bash); COMP_WORDS=(trireme train run.toml --set " +
                  words + "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _trireme; echo ${COMPREPLY[@]}"})
      .out;
}

TEST(CliCompletion, OffersEachKeyWithItsEqualsSign) {
  EXPECT_EQ(completed_setting("optimizer.mom"), "optimizer.momentum=\n");
  EXPECT_EQ(completed_setting("ps."), "ps.coordinator= ps.delay_compensation= ps.staleness=\n");
  EXPECT_EQ(completed_setting("optimiser."), "\n");
  EXPECT_EQ(completed_setting("run.seed = 3 --set lr.pow"), "lr.power=\n") << "after another setting";
}

TEST(CliCompletion, OffersValuesOfKeyWithNames) {
  EXPECT_EQ(completed_setting("parallel.mode ="), "all-reduce ps\n");
  EXPECT_EQ(completed_setting("parallel.mode = p"), "ps\n");
  EXPECT_EQ(completed_setting("run.exact = t"), "true\n");
  EXPECT_EQ(completed_setting("parallel.schedule = zb-v"), "zb-v\n");
  EXPECT_EQ(completed_setting("parallel.mode=p"), "parallel.mode=ps\n") << "where = ends no word";
  for (const std::string words : {"optimizer.lr =", "run.name = n", "data.augment =", "paralel.mode ="})
    EXPECT_EQ(completed_setting(words), "\n") << words;
  for (const std::string shell : {"zsh", "fish"}) {
    const auto script = run({bin("trireme"), "completion", shell}).out;
    EXPECT_NE(script.find("all-reduce ps"), std::string::npos) << shell;
    EXPECT_NE(script.find("optimizer.momentum"), std::string::npos) << shell;
  }
}

TEST(CliCompletion, LightProgramKnowsKeysAndValues) {
  const auto all = [](const std::string& program) {
    return run({"bash", "-c",
                "source <(" + bin(program) +
                    " completion bash); COMP_WORDS=(x); COMP_CWORD=0; _trireme_settings ''; "
                    "for key in ${COMPREPLY[@]}; do _trireme_settings $key; echo $key ${COMPREPLY[@]}; done "
                    "| "
                    "sort"})
        .out;
  };
  EXPECT_NE(all("trireme").find("optimizer.lr=\n"), std::string::npos);
  EXPECT_EQ(all("trireme"), all("trireme-torch")) << "docs/configuration.md, of which the light one is made";
}

TEST(CliNumbers, QuotesInvalidNumberWithAcceptedForm) {
  const auto said = [](std::vector<std::string> words) {
    words.insert(words.begin(), bin("trireme"));
    return run(words).err;
  };
  EXPECT_EQ(said({"simulate", "--schedule", "1f1b", "--ranks", "two"}),
            "trireme: error: trireme simulate: --ranks: 'two' is no number above 0; see: trireme simulate "
            "--help\n");
  EXPECT_EQ(said({"simulate", "--schedule", "1f1b", "--hop", "-1"}),
            "trireme: error: trireme simulate: --hop: '-1' is no number of 0 or more; see: trireme simulate "
            "--help\n");
  EXPECT_EQ(said({"launch", "-n", "two", "--", "true"}),
            "trireme: error: trireme launch: --nproc: 'two' is no number that it takes; see: trireme launch "
            "--help\n");
  EXPECT_EQ(said({"launch", "-n", "2147483647", "--", "true"}),
            "trireme: error: -n is 2147483647; it goes from 1 to 4096\n");
}

TEST(CliVersion, PrintsVersionsOfBuild) {
  const auto result = run({bin("trireme"), "--version"});
  EXPECT_EQ(result.exit_code, 0);
  const std::string version = read_file(checkout("VERSION"));
  EXPECT_THAT(result.out,
              testing::StartsWith("trireme " + version.substr(0, version.find('\n')) + ", libtorch "));
  EXPECT_THAT(result.out,
              testing::MatchesRegex("trireme [0-9.]+, libtorch 2[.0-9]+, (g\\+\\+|clang) [^,]+, "
                                    "commit ([0-9a-f]{12}(\\+changes)?|unknown), (no )?CUDA object\n"));
  EXPECT_EQ(run({bin("trireme-torch"), "--version"}).out, result.out);
  const auto doctor = nlohmann::json::parse(run({bin("trireme"), "doctor", "--json"}).out);
  EXPECT_THAT(doctor.dump(), testing::HasSubstr(result.out.substr(8, result.out.size() - 9)));
}

TEST(CliVersion, SaysWhetherThereIsACudaObject) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "object.so", "");
  for (const auto& [object, words] :
       {std::pair{"object.so", ", CUDA object\n"}, {"none.so", ", no CUDA object\n"}}) {
    const auto result =
        run({bin("trireme"), "--version"}, {{"TRIREME_CUDA_OBJECT", (folder / object).string()}});
    EXPECT_THAT(result.out, testing::EndsWith(words));
  }
}

TEST(CliChannels, EncryptionOfTheEnvironmentExcludesInsecureChannels) {
  const auto status = [](const std::string& encrypt) {
    return run({"/usr/bin/env", "TRIREME_ENCRYPT=" + encrypt, bin("trireme"), "ps", "status",
                "tcp:127.0.0.1:1", "--insecure"});
  };
  EXPECT_EQ(status("1").exit_code, 2);
  EXPECT_EQ(status("1").err,
            "trireme: error: take one of --encrypt (also TRIREME_ENCRYPT=1) and --insecure\n");
  EXPECT_NE(status("yes").err.find("TRIREME_ENCRYPT is 'yes'"), std::string::npos);
}

}  // namespace
}  // namespace trireme::test
