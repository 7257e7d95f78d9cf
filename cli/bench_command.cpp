#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>

#include "cli/command.h"
#include "cli/launch/program_path.h"
#include "trireme/base/error.h"

namespace trireme::cli {
namespace {

struct BenchArguments {
  std::string question;
  int num_ranks = 0;
  bool smoke = false;
};

int run_bench(const BenchArguments& bench) {
  const std::vector<std::string> known = {"allreduce"};
  require(bench.question == known.front(), "there is no benchmark '", bench.question, "'",
          suggest(bench.question, known));
  std::vector<std::string> words = {find_own_program("bench_" + bench.question)};
  if (bench.num_ranks > 0) words.insert(words.end(), {"-n", text(bench.num_ranks)});
  if (bench.smoke) words.push_back("--smoke");
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  throw InternalError(text("cannot start ", words.front(), ": ", std::strerror(errno)));
}

std::function<int()> declare(CLI::App& app) {
  auto bench = std::make_shared<BenchArguments>();
  app.add_option("question", bench->question, "What to measure: allreduce")->type_name("NAME")->required();
  app.add_option("-n,--nproc", bench->num_ranks, "Ranks")->type_name("N")->check(CLI::PositiveNumber);
  app.add_flag("--smoke", bench->smoke, "Only see that it runs: few sizes, few repetitions");
  return [bench] { return run_bench(*bench); };
}

}  // namespace

Command bench_command() {
  return {.name = "bench",
          .summary = "Measure this machine: how long an all-reduce takes, beside its alternatives",
          .usage = "NAME [OPTIONS]",
          .examples = "  trireme bench allreduce -n 2\n  trireme bench allreduce -n 4 --smoke\n",
          .declare = declare};
}

}  // namespace trireme::cli
