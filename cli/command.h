#pragma once
// The interface of commands: one file per command, one row in a table. Commands that need no tensors run in
// the program `trireme`, which does not load libtorch and starts in milliseconds. The others run in
// `trireme-torch` next to it, to which `trireme` hands over by exec. A user only ever types `trireme`, which
// has the options of all commands: help, errors in the options and completion need no libtorch. A custom
// program has the commands of trireme-torch under its own name.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/as_ranks.h"
#include "cli/setting_words.h"

namespace trireme::cli {

struct Command {
  std::string name;
  std::string summary;
  std::string usage;     ///< what follows the name: "FILE [OPTIONS]"
  std::string examples;  ///< shown at the end of its help
  /// Declares the options on the sub-command and returns what runs it; that returns an exit code or throws.
  std::function<std::function<int()>(CLI::App&)> declare;
};

/// What the program was started with, its name left out.
using Arguments = std::vector<std::string>;

/// Commands under one name.
struct Program {
  std::string name;      ///< as help, messages and completion call it
  std::string about;     ///< the first line of its help
  std::string version;   ///< what --version prints
  std::string examples;  ///< shown at the end of its help
  std::function<std::vector<Command>(const Program&, const Arguments&)> commands;
};

// One per file. Where the options stand apart, so that both programs know them, `run` gets them.
Command launch_command(const Arguments& arguments);
Command doctor_command();
/// `program` outlives what runs. `settings` are what --set takes.
Command completion_command(const Program& program, std::function<std::vector<Setting>()> settings);
Command bench_command();
Command runs_command();
Command autopsy_command();
Command top_command();
Command schedule_command();
Command simulate_command();
Command ps_command();
Command topology_command();
Command serve_coordinator_command();
Command serve_params_command();

/// Declares FILE, --set and -n.
void declare_ranks(CLI::App& app, RankArguments& ranks);

struct TrainArguments {
  RankArguments ranks;
  int max_restarts = 0;
  bool elastic = false;
  int min_ranks = 0;  ///< 0: as many as ranks are started
  int num_spares = 0;
  bool resume = false;
  std::optional<std::string> trace;  ///< file of --trace; empty where none was named
  std::string trace_steps;
  std::string timeline;             ///< file of --timeline; empty: none
  std::string plan;                 ///< file of --plan; empty: none
  std::optional<int> metrics_port;  ///< of the launcher; none: no port
  std::string metrics_token_file;
};
Command train_command(std::function<int(const TrainArguments&)> run);

struct VerifyArguments {
  RankArguments ranks;
  std::int64_t steps = 3;
  bool json = false;
};
Command verify_command(std::function<int(const VerifyArguments&)> run);

struct EstimateArguments {
  RankArguments ranks;
  std::string measurements;  ///< file to read; empty: the ranks measure
  std::string save;          ///< file to write; empty: none
  bool json = false;
};

/// `trireme estimate` on `run`, which measures or reads, and prints.
Command estimate_command(std::function<int(const EstimateArguments&)> run);

/// `trireme plan FILE.toml`.
struct PlanArguments {
  RankArguments ranks;
  double memory_gib = 0;        ///< of a rank; 0: its share of the host's
  double budget_s = 0;          ///< of the search; 0: until it is complete
  std::string measurements;     ///< file to read; empty: kept ones, or the ranks measure
  std::string save;             ///< file to write; empty: none
  std::string links;            ///< file of the links to plan for; empty: those that were measured
  std::string machine;          ///< file that describes it; empty: this one
  std::int64_t vocabulary = 0;  ///< tokens of a model on a described machine
  std::string page;             ///< file of the page; empty: none
  bool measures = false;        ///< even if measurements are kept
  bool checks = false;          ///< the fastest plans are run for some steps
  bool frees_batch = false;     ///< the global batch is searched, too
  bool json = false, toml = false, shows_all = false;
};

/// `trireme plan`: on `run` for a configuration; from a profile without it.
Command plan_command(std::function<int(const PlanArguments&)> run);

struct FindBatchArguments {
  RankArguments ranks;
  std::int64_t max_samples = 0;  ///< of a batch; 0: as far as speed grows
  double memory_limit_gib = 0;   ///< of a rank; 0: its share of the host's
  double noise_scale = 0;        ///< in samples; 0: measured
  bool json = false;
};
Command find_batch_command(std::function<int(const FindBatchArguments&)> run);

struct MemoryArguments {
  std::string file;
  std::vector<std::string> overrides;
  int num_ranks = 1;
  double limit_gib = 0;  ///< of a rank; 0: its share of this host's
  bool json = false;
};
Command memory_command(std::function<int(const MemoryArguments&)> run);

struct ProfileArguments {
  std::string file;
  std::vector<std::string> overrides;
  std::int64_t samples = 0;  ///< of a micro-batch; 0: the configuration's
  std::int64_t repeats = 5;
  std::string output;  ///< file of the profile; empty: none
  bool json = false;
};
Command profile_command(std::function<int(const ProfileArguments&)> run);

struct CheckpointArguments {
  std::string action;  ///< inspect, verify, export or import
  std::string path;
  std::string out;  ///< of export and import
  bool force = false;
  bool json = false;
  std::uint64_t max_shard_bytes = 0;  ///< 0: one file
};
Command checkpoint_command(std::function<int(const CheckpointArguments&)> run);

struct DataArguments {
  std::string action;  ///< pack, inspect or verify
  std::string from;    ///< of pack: a configuration, a data set's name or a file of text; else the folder
  std::string out;     ///< of pack
  std::vector<std::string> overrides;
  double shard_mib = 256;
  bool force = false;
  std::string jsonl;   ///< field of the texts; empty: the file is not JSON lines
  std::string tokens;  ///< "u16", "u32"; empty: the file holds no numbers
  std::int64_t vocabulary = 0;
  std::string validation;
  bool json = false;
};
Command data_command(std::function<int(const DataArguments&)> run);

struct BackendsArguments {
  bool json = false;
};
Command backends_command(std::function<int(const BackendsArguments&)> run);

}  // namespace trireme::cli
