#include <algorithm>
#include <charconv>
#include <memory>

#include "cli/command.h"
#include "cli/frame.h"
#include "cli/launch/launcher.h"
#include "trireme/base/error.h"

namespace trireme::cli {
namespace {

/// The program and its arguments: the words from the first one that is not our option, or after "--".
std::vector<std::string> program_of(const CLI::App& app, const Arguments& arguments) {
  auto program = app.remaining();
  if (!program.empty() && program.front().starts_with("-")) reject_word(app, program.front());
  auto rest = std::find(arguments.begin(), arguments.end(), "--");
  if (program.empty() && rest != arguments.end()) ++rest;  // a later one belongs to the program
  program.insert(program.end(), rest, arguments.end());
  return program;
}

/// "K", or "MIN:MAX".
void read_num_nodes(const std::string& given, LaunchOptions& options) {
  const auto number = [&](const std::string& word) {
    int value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    require(error == std::errc() && end == word.data() + word.size() && value > 0, "--nnodes is ", given,
            "; expected a number of hosts, or MIN:MAX for an elastic job");
    return value;
  };
  const std::size_t colon = given.find(':');
  options.num_nodes = number(colon == std::string::npos ? given : given.substr(colon + 1));
  options.min_nodes = colon == std::string::npos ? 0 : number(given.substr(0, colon));
}

std::function<int()> declare(CLI::App& app, const Arguments& arguments) {
  auto options = std::make_shared<LaunchOptions>();
  app.add_option("-n,--nproc", options->num_ranks, "Ranks to start on this host")->type_name("N")->required();
  app.add_option_function<std::string>(
         "--nnodes", [options](const std::string& given) { read_num_nodes(given, *options); },
         "Hosts that take part, each with as many ranks; elastic: MIN:MAX")
      ->type_name("K");
  app.add_option("--node-rank", options->node_rank, "Number of this host, from 0 (elastic: 0, or any other)")
      ->type_name("R");
  app.add_option("--master-addr", options->master_addr, "Address of the host with --node-rank 0")
      ->type_name("A");
  app.add_option("--master-port", options->master_port, "Port for the rendezvous (one host: a free one)")
      ->type_name("P");
  app.add_option("--rendezvous", options->rendezvous,
                 "Elastic: etcd://HOST:PORT,HOST:PORT/JOB in place of a first host, whose loss ends the job")
      ->type_name("A");
  app.add_option("--local-addr", options->local_addr,
                 "With --rendezvous: address of this host for the others (default: the one that faces etcd)")
      ->type_name("A");
  app.add_option("--secret-file", options->secret_file, "The job's secret (several hosts: the same on each)")
      ->type_name("F");
  app.add_option("--servers", options->num_servers, "Servers of a parameter server to start with them")
      ->type_name("N");
  app.add_option("--max-restarts", options->max_restarts, "Restarts of all ranks after a failure")
      ->type_name("R");
  app.add_flag(
      "--elastic", options->elastic,
      "Ranks that survive a failure keep running; --max-restarts are then new processes for failed ones");
  app.add_option("--min-ranks", options->min_ranks,
                 "Elastic: fewest ranks to continue with (default: those of MIN hosts)")
      ->type_name("M");
  app.add_option("--join-wait", options->join_wait_s,
                 "Elastic: seconds to wait for more than MIN hosts before the start (default: 5)")
      ->type_name("S");
  app.add_option("--spares", options->num_spares, "Elastic: processes that wait for a failed rank's place")
      ->type_name("K");
  app.add_option("--stop-grace", options->stop_grace_s, "Seconds between SIGTERM and SIGKILL")
      ->type_name("S");
  app.add_option("--frozen-grace", options->frozen_grace_s,
                 "Seconds that all ranks may be frozen (0: for ever)")
      ->type_name("S");
  app.add_option("--autopsy", options->autopsy_folder,
                 "Folder for the evidence of a failure (trireme autopsy DIR)")
      ->type_name("DIR");
  app.add_option("--metrics-port", options->metrics_port,
                 "Answer GET /metrics, for Prometheus, with a token; 0: a free one")
      ->type_name("P");
  app.add_option("--metrics-address", options->metrics_address,
                 "Of this host, for the metrics (default: 127.0.0.1)")
      ->type_name("HOST");
  app.add_option("--metrics-token-file", options->metrics_token_file,
                 "With the token of the metrics, made where it is missing (default: a new token, printed)")
      ->type_name("F");
  auto no_prefix = std::make_shared<bool>(false);
  app.add_flag("--no-prefix", *no_prefix, "No \"[rank] \" before each line");
  app.prefix_command();
  return [options, no_prefix, arguments, &app] {
    options->command = program_of(app, arguments);
    options->prefix_output = !*no_prefix;
    return launch(*options);
  };
}

}  // namespace

Command launch_command(const Arguments& arguments) {
  return {
      .name = "launch",
      .summary = "Start a program as N ranks, supervise them, report failures",
      .usage = "-n N [OPTIONS] -- PROGRAM [ARGUMENTS]",
      .examples =
          "  trireme launch -n 4 -- ./my_program --epochs 3\n"
          "  trireme launch -n 2 --max-restarts 3 -- ./my_program\n"
          "  trireme launch -n 2 --servers 2 -- ./my_program\n"
          "  trireme launch -n 8 --nnodes 2 --node-rank 1 --master-addr node0 --master-port 29500 \\\n"
          "      --secret-file job.secret -- ./my_program\n"
          "  trireme launch -n 8 --nnodes 2:4 --elastic --node-rank 1 --master-addr node0 \\\n"
          "      --master-port 29500 --secret-file job.secret -- ./my_program\n"
          "  trireme launch -n 8 --nnodes 2:4 --elastic --rendezvous etcd://e1:2379,e2:2379,e3:2379/job7 \\\n"
          "      --secret-file job.secret -- ./my_program\n",
      .declare = [arguments](CLI::App& app) { return declare(app, arguments); }};
}

}  // namespace trireme::cli
