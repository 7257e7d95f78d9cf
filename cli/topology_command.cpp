#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/as_ranks.h"
#include "cli/command.h"
#include "cli/numbers.h"
#include "cli/topology/measure.h"
#include "cli/topology/report.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/mesh_axes.h"

namespace trireme::cli {
namespace {

struct TopologyArguments {
  int num_ranks = 0;
  std::string from;
  std::string why;
  std::string mesh;
  std::string svg;
  MeasureOptions measure;
  bool json = false;
};

/// The same options, for the ranks that a launcher starts.
std::vector<std::string> options_of(const TopologyArguments& given) {
  std::vector<std::string> words = {"--timeout", text(given.measure.timeout_s)};
  if (!given.why.empty()) words.insert(words.end(), {"--why", given.why});
  if (!given.mesh.empty()) words.insert(words.end(), {"--mesh", given.mesh});
  if (!given.svg.empty()) words.insert(words.end(), {"--svg", given.svg});
  if (!given.measure.cache.empty()) words.insert(words.end(), {"--cache", given.measure.cache});
  if (given.json) words.push_back("--json");
  return words;
}

/// Rejects options that cannot work before any rank starts.
void check(const TopologyArguments& given) {
  if (!given.why.empty()) parse_sizes(given.why);
  if (!given.mesh.empty() && given.num_ranks > 0) parse_mesh(given.mesh, given.num_ranks);
  require(!given.json || given.why.empty() || given.mesh.empty(),
          "--json prints one thing: leave --why or --mesh out");
  require(given.from.empty() || (given.num_ranks == 0 && given.measure.cache.empty()),
          "--from reads what was measured before: leave -n and --cache out");
  if (given.svg.empty()) return;
  const std::filesystem::path folder = std::filesystem::absolute(given.svg).parent_path();
  require(std::filesystem::is_directory(folder), "--svg: there is no folder ", folder.string());
}

void show(const TopologyReport& report, const TopologyArguments& given) {
  const std::vector<double> sizes = given.why.empty() ? std::vector<double>() : parse_sizes(given.why);
  std::optional<MeshShape> mesh;
  if (!given.mesh.empty()) mesh = parse_mesh(given.mesh, report.table.num_ranks());
  if (!given.svg.empty()) write_file_atomic(given.svg, to_svg(report));
  if (given.json && mesh) {
    std::cout << axes_to_json(report, *mesh);
    return;
  }
  if (given.json) {
    std::cout << (sizes.empty() ? to_json(report) : choices_to_json(report, sizes));
    return;
  }
  print_topology(std::cout, report);
  if (mesh) print_axes(std::cout, report, *mesh);
  if (!sizes.empty()) print_choices(std::cout, report, sizes);
  if (!given.svg.empty()) std::cout << "\nThe figure is in " << given.svg << "\n";
}

int run_topology(const TopologyArguments& given) {
  check(given);
  if (!given.from.empty()) {
    show(read_topology(given.from), given);
    return kExitOk;
  }
  const RankArguments ranks{.file = {}, .overrides = {}, .num_ranks = given.num_ranks};
  if (plan_ranks(ranks).launches)
    become_launcher(ranks, {.name = "topology", .options = options_of(given), .of_launch = {"--no-prefix"}});
  if (const auto report = measure_topology(given.measure, std::cerr)) show(*report, given);
  return kExitOk;
}

std::function<int()> declare(CLI::App& app) {
  auto given = std::make_shared<TopologyArguments>();
  app.add_option("-n,--nproc", given->num_ranks, "Ranks to start on this host; leave out under a launcher")
      ->type_name("N")
      ->check(above_zero());
  app.add_option("--why", given->why,
                 "Sizes, such as 1KB,64KiB,25MB: what each all-reduce between hosts would take")
      ->type_name("SIZE,...");
  app.add_option("--mesh", given->mesh,
                 "Axes, such as dp=2,tp=4: the slowest link along each; the rest of the ranks is dp")
      ->type_name("AXIS=N,...");
  app.add_flag("--json", given->json, "What was measured as JSON; with --why or --mesh, that");
  app.add_option("--svg", given->svg, "Also a figure of the hosts and their links")->type_name("FILE");
  app.add_option("--cache", given->measure.cache,
                 "Keep results there, and do not measure the same hosts again")
      ->type_name("DIR");
  app.add_option("--from", given->from, "Measure nothing: show what --json has printed")->type_name("FILE");
  app.add_option("--timeout", given->measure.timeout_s, "Seconds for a pair of ranks (default: 5)")
      ->type_name("S")
      ->check(above_zero());
  return [given] { return run_topology(*given); };
}

}  // namespace

Command topology_command() {
  return {
      .name = "topology",
      .summary = "Measure the links between ranks, describe hosts, predict the fastest all-reduce",
      .usage = "[OPTIONS]",
      .examples =
          "  trireme topology -n 4\n"
          "  trireme topology -n 4 --why 1KB,64KB,1MB,25MB\n"
          "  trireme topology -n 4 --mesh tp=2\n"
          "  trireme topology -n 2 --json > links.json; trireme topology --from links.json --svg links.svg\n"
          "  trireme launch -n 2 --nnodes 2 --node-rank 0 --master-addr node0 --master-port 29500 \\\n"
          "      --secret-file job.secret --no-prefix -- trireme topology\n",
      .declare = declare};
}

}  // namespace trireme::cli
