#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <system_error>

#include "cli/command.h"
#include "cli/launch/program_path.h"
#include "cli/numbers.h"
#include "cli/ps_chaos.h"
#include "trireme/base/error.h"
#include "trireme/schedule/schedule_table.h"

namespace trireme::cli {
namespace {

const std::vector<std::string> kQuestions = {"allreduce", "pipeline-resnet50", "ps", "ps-chaos",
                                             "rpc-resnet50"};

const std::vector<std::string> kConvolutions = {"auto", "aten", "onednn", "product"};

enum Question : unsigned { kPipelineResnet50 = 1, kRpcResnet50 = 2, kPs = 4, kPsChaos = 8 };

/// An option that is passed on unchanged, and its benchmarks.
struct PassedOption {
  const char* name;
  const char* type;  ///< null: a flag
  const char* help;
  unsigned questions = kPipelineResnet50;
  std::string value = {};
  bool given = false;
};

struct BenchArguments {
  std::string question;
  int num_ranks = 0;
  bool smoke = false;
  PsChaosOptions chaos = {};
  std::vector<PassedOption> passed = {
      {"--batch", "N", "Images of a step (default: 120)", kPipelineResnet50 | kRpcResnet50},
      {"--image-size", "N", "Their height and width (default: 64)", kPipelineResnet50 | kRpcResnet50},
      {"--splits", "N,...",
       "Images of a micro-batch (default: 1,3,5,8,10,12,20,40,60); numbers of micro-batches (default: "
       "1,2,4,8)",
       kPipelineResnet50 | kRpcResnet50},
      {"--repeats", "N", "Passes over all of them (default: 5)", kPipelineResnet50 | kRpcResnet50},
      {"--schedule", "NAME", "A schedule of two stages (default: 1f1b)"},
      {"--convolution", "NAME", "Kernels of convolutions: auto, aten, onednn, product (default: auto)"},
      {"--report", "FILE", "The page with table and figures (default: report.html)",
       kPipelineResnet50 | kRpcResnet50},
      {"--timeline", "FILE", "Also a page with planned and measured actions of the best split"},
      {"--json", nullptr, "JSON on standard output instead of the table",
       kPipelineResnet50 | kRpcResnet50 | kPs | kPsChaos},
      {"--what", "PART,...",
       "push, pull, push-pull, latency, scaling, replication, sparse, recovery (default: all)", kPs},
      {"--ways", "WAY,...", "tcp, unix, shm, tls, psk (default: all)", kPs},
      {"--sizes", "BYTES,...", "Of a push or pull (default: 4K,256K,4M,64M)", kPs},
      {"--servers", "N,...", "Servers; ps: of scaling (default: 1,2), ps-chaos: one number (default: 3)",
       kPs | kPsChaos},
      {"--workers", "N,...", "Workers; ps: of scaling (default: 1,2), ps-chaos: one number (default: 2)",
       kPs | kPsChaos},
      {"--passes", "N", "Passes over whatever is compared (default: 5)", kPs},
      {"--spin-us", "US", "How long loops spin before they sleep (default: as they choose)", kPs},
      {"--pin", nullptr, "Workers on the first core, servers on the second", kPs},
      {"--codec", "NAME", "How pushes are encoded (default: none)", kPs}};

  const PassedOption& option(std::string_view name) const {
    return *std::ranges::find(passed, name, &PassedOption::name);
  }
};

[[noreturn]] void become(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  throw InternalError(text("cannot start ", words.front(), ": ", std::strerror(errno)));
}

void check_splits(const std::string& splits) {
  for (const std::string& word : split(splits, ',')) {
    const bool digits = !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
    require(digits && word.find_first_not_of('0') != std::string::npos && word.size() < 7, "--splits is '",
            splits, "', of which '", word, "' is no size of a micro-batch; expected numbers such as 5,10,20");
  }
}

/// Checked first, so that minutes of measuring do not end with an invalid path.
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
    require(std::ranges::find(kConvolutions, option.value) != kConvolutions.end(), "--convolution is '",
            option.value, "'; expected ", join(kConvolutions));
  }
  if (name == "--report" || name == "--timeline") check_folder_of(option);
}

/// "ps, ps-chaos": the benchmarks of an option.
std::string questions_of(const PassedOption& option) {
  std::vector<std::string> names;
  for (const auto& [question, name] :
       {std::pair(kPipelineResnet50, "pipeline-resnet50"), std::pair(kRpcResnet50, "rpc-resnet50"),
        std::pair(kPs, "ps"), std::pair(kPsChaos, "ps-chaos")}) {
    if ((option.questions & question) != 0) names.emplace_back(name);
  }
  return join(names);
}

/// Throws InvalidArgument for an option that `question` does not have.
void hand_on(const BenchArguments& bench, unsigned question, std::vector<std::string>& words) {
  if (bench.smoke) words.emplace_back("--smoke");
  for (const PassedOption& option : bench.passed) {
    if (!option.given) continue;
    require((option.questions & question) != 0, option.name, " is an option of ", questions_of(option), "; ",
            bench.question, " has none of it");
    check(option);
    words.emplace_back(option.name);
    if (option.type != nullptr) words.push_back(option.value);
  }
}

[[noreturn]] void run_allreduce(const BenchArguments& bench) {
  std::vector<std::string> words = {find_own_program("bench_allreduce")};
  if (bench.num_ranks > 0) words.insert(words.end(), {"-n", text(bench.num_ranks)});
  hand_on(bench, 0, words);
  become(std::move(words));
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
  hand_on(bench, kPipelineResnet50, words);
  become(std::move(words));
}

[[noreturn]] void run_rpc_resnet50(const BenchArguments& bench) {
  require(bench.num_ranks == 0 || bench.num_ranks == 3,
          "rpc-resnet50 is about a caller and two workers, -n is ", bench.num_ranks, ": leave -n out");
  std::vector<std::string> words = {
      find_own_program("trireme"),           "launch", "-n", "3", "--no-prefix", "--",
      find_own_program("bench_rpc_resnet50")};
  hand_on(bench, kRpcResnet50, words);
  become(std::move(words));
}

[[noreturn]] void run_ps(const BenchArguments& bench) {
  std::vector<std::string> words = {find_own_program("bench_ps")};
  hand_on(bench, kPs, words);
  become(std::move(words));
}

int number_of(const PassedOption& option, int otherwise) {
  if (!option.given) return otherwise;
  int number = 0;
  const auto [end, error] =
      std::from_chars(option.value.data(), option.value.data() + option.value.size(), number);
  require(error == std::errc() && *end == 0, option.name, " is '", option.value,
          "'; ps-chaos expects one number");
  return number;
}

int run_chaos(const BenchArguments& bench) {
  std::vector<std::string> all;
  hand_on(bench, kPsChaos, all);
  PsChaosOptions options = bench.chaos;
  options.num_servers = number_of(bench.option("--servers"), options.num_servers);
  options.num_workers = number_of(bench.option("--workers"), options.num_workers);
  options.json = bench.option("--json").given;
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
    const std::string help = text(questions_of(option), ": ", option.help);
    if (option.type == nullptr) {
      app.add_flag(option.name, option.given, help);
      continue;
    }
    auto* declared = app.add_option(option.name, option.value, help)->type_name(option.type);
    declared->each([&option](const std::string&) { option.given = true; });
    if (option.type == std::string_view("N")) declared->check(above_zero());
  }
  app.add_option("--seeds", bench->chaos.num_seeds, "ps-chaos: clusters, one after the other (default: 1)")
      ->type_name("N");
  app.add_option("--seed", bench->chaos.first_seed, "ps-chaos: the first one (default: 1)")->type_name("N");
  app.add_option("--minutes", bench->chaos.minutes,
                 "ps-chaos: one cluster under mixed load and random faults for so long, which may not grow")
      ->type_name("M")
      ->check(above_zero());
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
          "  trireme bench ps --what push,latency --ways tcp,shm --sizes 4K,4M\n"
          "  trireme bench ps --what push --codec int8\n"
          "  trireme bench ps-chaos --seeds 3\n",
      .declare = declare};
}

}  // namespace trireme::cli
