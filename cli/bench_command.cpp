#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>

#include "cli/command.h"
#include "cli/launch/program_path.h"
#include "cli/numbers.h"
#include "cli/ps_chaos.h"
#include "trireme/base/error.h"
#include "trireme/compress/codec.h"
#include "trireme/schedule/schedule_table.h"

namespace trireme::cli {
namespace {

const std::vector<std::string> kQuestions = {"allreduce", "pipeline-resnet50", "ps", "ps-chaos",
                                             "rpc-resnet50"};

/// An option of pipeline-resnet50, handed on as it is.
struct PassedOption {
  const char* name;
  const char* type;  ///< null: a flag
  const char* help;
  bool of_rpc_too = false;  ///< of rpc-resnet50
  std::string value = {};
  bool given = false;
};

struct BenchArguments {
  std::string question;
  int num_ranks = 0;
  bool smoke = false;
  std::string codec = "none";
  PsChaosOptions chaos = {};
  std::vector<PassedOption> passed = {
      {"--batch", "N", "Images of a step (default: 120)", true},
      {"--image-size", "N", "Their height and width (default: 64)", true},
      {"--splits", "N,...",
       "Images of a micro-batch (default: 1,3,5,8,10,12,20,40,60); numbers of micro-batches (default: "
       "1,2,4,8)",
       true},
      {"--repeats", "N", "Passes over all of them (default: 5)", true},
      {"--schedule", "NAME", "A schedule of two stages (default: 1f1b)"},
      {"--convolution", "NAME", "Kernels of convolutions: auto, aten, onednn, product (default: auto)"},
      {"--report", "FILE", "The page with table and figures (default: report.html)", true},
      {"--timeline", "FILE", "Also a page with planned and measured actions of the best split"},
      {"--json", nullptr, "JSON on standard output instead of the table", true}};
};

[[noreturn]] void become(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  throw InternalError(text("cannot start ", words.front(), ": ", std::strerror(errno)));
}

[[noreturn]] void run_allreduce(const BenchArguments& bench) {
  for (const PassedOption& option : bench.passed)
    require(!option.given, option.name, " is an option of pipeline-resnet50; allreduce takes -n and --smoke");
  std::vector<std::string> words = {find_own_program("bench_allreduce")};
  if (bench.num_ranks > 0) words.insert(words.end(), {"-n", text(bench.num_ranks)});
  if (bench.smoke) words.push_back("--smoke");
  become(std::move(words));
}

void check_splits(const std::string& splits) {
  for (const std::string& word : split(splits, ',')) {
    const bool digits = !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
    require(digits && word.find_first_not_of('0') != std::string::npos && word.size() < 7, "--splits is '",
            splits, "', of which '", word, "' is no size of a micro-batch; expected numbers such as 5,10,20");
  }
}

/// Minutes of measuring are not to end with a name that is wrong.
void check_folder_of(const PassedOption& option) {
  require(!option.value.empty(), option.name, " is empty; expected the name of a file to write");
  const std::filesystem::path folder = std::filesystem::absolute(option.value).parent_path();
  require(std::filesystem::is_directory(folder), option.name, ": there is no folder ", folder.string());
}

void check(const PassedOption& option) {
  const std::string_view name = option.name;
  if (name == "--splits") check_splits(option.value);
  if (name == "--schedule") schedule::find_schedule(option.value);
  if (name == "--convolution") {
    require(option.value == "auto" || option.value == "aten" || option.value == "onednn",
            "--convolution is '", option.value, "'; expected auto, aten or onednn");
  }
  if (name == "--report" || name == "--timeline") check_folder_of(option);
}

[[noreturn]] void run_pipeline_resnet50(const BenchArguments& bench) {
  require(bench.num_ranks == 0 || bench.num_ranks == 2,
          "pipeline-resnet50 is about two stages on 2 ranks, -n is ", bench.num_ranks, ": leave -n out");
  std::vector<std::string> words = {find_own_program("trireme"),
                                    "launch",
                                    "-n",
                                    "2",
                                    "--no-prefix",
                                    "--",
                                    find_own_program("bench_pipeline_resnet50")};
  if (bench.smoke) words.push_back("--smoke");
  for (const PassedOption& option : bench.passed) {
    if (!option.given) continue;
    check(option);
    words.push_back(option.name);
    if (option.type != nullptr) words.push_back(option.value);
  }
  become(std::move(words));
}

[[noreturn]] void run_rpc_resnet50(const BenchArguments& bench) {
  require(bench.num_ranks == 0 || bench.num_ranks == 3,
          "rpc-resnet50 is about a caller and two workers, -n is ", bench.num_ranks, ": leave -n out");
  std::vector<std::string> words = {
      find_own_program("trireme"),           "launch", "-n", "3", "--no-prefix", "--",
      find_own_program("bench_rpc_resnet50")};
  if (bench.smoke) words.push_back("--smoke");
  for (const PassedOption& option : bench.passed) {
    if (!option.given) continue;
    require(option.of_rpc_too, option.name,
            " is an option of pipeline-resnet50; remote calls have none of it");
    check(option);
    words.push_back(option.name);
    if (option.type != nullptr) words.push_back(option.value);
  }
  become(std::move(words));
}

[[noreturn]] void run_ps(const BenchArguments& bench) {
  compress::codec(bench.codec);  // or throws
  std::vector<std::string> words = {find_own_program("bench_ps_push"), "--codec", bench.codec};
  if (bench.smoke) words.push_back("--smoke");
  become(std::move(words));
}

int run_chaos(const BenchArguments& bench) {
  PsChaosOptions options = bench.chaos;
  options.json = bench.passed.back().given;
  return run_ps_chaos(options, std::cout);
}

int run_bench(const BenchArguments& bench) {
  if (bench.question == "allreduce") run_allreduce(bench);
  if (bench.question == "pipeline-resnet50") run_pipeline_resnet50(bench);
  if (bench.question == "rpc-resnet50") run_rpc_resnet50(bench);
  if (bench.question == "ps") run_ps(bench);
  if (bench.question == "ps-chaos") return run_chaos(bench);
  throw InvalidArgument(
      text("there is no benchmark '", bench.question, "'", suggest(bench.question, kQuestions)));
}

std::function<int()> declare(CLI::App& app) {
  auto bench = std::make_shared<BenchArguments>();
  app.add_option("question", bench->question, "What to measure: " + join(kQuestions))
      ->type_name("NAME")
      ->required();
  app.add_option("-n,--nproc", bench->num_ranks, "Ranks")->type_name("N")->check(above_zero());
  app.add_flag("--smoke", bench->smoke, "Only see that it runs: few sizes, few repetitions");
  for (PassedOption& option : bench->passed) {
    const std::string help =
        text(option.of_rpc_too ? "pipeline-, rpc-resnet50: " : "pipeline-resnet50: ", option.help);
    if (option.type == nullptr) {
      app.add_flag(option.name, option.given, help);
      continue;
    }
    auto* declared = app.add_option(option.name, option.value, help)->type_name(option.type);
    declared->each([&option](const std::string&) { option.given = true; });
    if (option.type == std::string_view("N")) declared->check(above_zero());
  }
  app.add_option("--codec", bench->codec,
                 "ps: how pushes are encoded, " + join(compress::codec_names()) + " (default: none)")
      ->type_name("NAME");
  app.add_option("--seeds", bench->chaos.num_seeds, "ps-chaos: clusters, one after the other (default: 1)")
      ->type_name("N");
  app.add_option("--seed", bench->chaos.first_seed, "ps-chaos: the first one (default: 1)")->type_name("N");
  app.add_option("--servers", bench->chaos.num_servers, "ps-chaos: servers (default: 3)")->type_name("N");
  app.add_option("--workers", bench->chaos.num_workers, "ps-chaos: workers (default: 2)")->type_name("N");
  app.add_option("--replicas", bench->chaos.num_replicas, "ps-chaos: of each partition (default: 2)")
      ->type_name("R");
  app.add_option("--kinds", bench->chaos.kinds,
                 "ps-chaos: faults of each cluster: kill, moving, checkpoint, two, worker, links, freeze, "
                 "coordinator (default: all)")
      ->type_name("K,...");
  return [bench] { return run_bench(*bench); };
}

}  // namespace

Command bench_command() {
  return {
      .name = "bench",
      .summary = "Measure this machine: collectives, pipelines, remote calls, a parameter server under kills",
      .usage = "NAME [OPTIONS]",
      .examples =
          "  trireme bench allreduce -n 2\n  trireme bench allreduce -n 4 --smoke\n"
          "  trireme bench pipeline-resnet50 --report report.html --timeline timeline.html\n"
          "  trireme bench pipeline-resnet50 --batch 24 --splits 4,8,12 --repeats 3\n"
          "  trireme bench rpc-resnet50 --splits 1,2,4,8\n"
          "  trireme bench ps\n  trireme bench ps --codec int8\n"
          "  trireme bench ps-chaos --seeds 3\n",
      .declare = declare};
}

}  // namespace trireme::cli
