#include "cli/launch/launcher.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <thread>

#include "cli/launch/evidence_writer.h"
#include "cli/launch/launch_metrics.h"
#include "cli/launch/parameter_cluster.h"
#include "cli/launch/program_path.h"
#include "cli/launch/supervisor.h"
#include "cli/launch/temporary_folder.h"
#include "trireme/autopsy/evidence_file.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/wire/store_client.h"
#include "trireme/wire/store_server.h"

extern char** environ;

namespace trireme::cli {
namespace {

constexpr const char* kLoopback = "127.0.0.1";
// Time that ranks of other hosts have to leave after those of this host.
constexpr double kGoodbye_s = 60, kSilent_s = 5;
constexpr double kLookForSignals_s = 0.2;

/// Limits of processes on one host: more than any host has cores or GPUs.
constexpr int kMostProcesses = 4096;
constexpr int kMostHosts = 65536;

void check_elasticity(const LaunchOptions& options) {
  require(options.elastic || options.rendezvous.empty(),
          "--rendezvous is for elastic jobs: add --elastic, or give --master-addr and --master-port");
  require(!options.rendezvous.empty() || options.local_addr.empty(),
          "--local-addr is for --rendezvous, which is missing");
  require(options.rendezvous.empty() || options.master_addr.empty(), "--rendezvous ", options.rendezvous,
          " and --master-addr ", options.master_addr,
          " both say where the hosts find each other; expected one of them");
  require(options.elastic || (options.min_ranks == 0 && options.num_spares == 0 && options.min_nodes == 0),
          "--min-ranks, --spares and --nnodes MIN:MAX are for elastic jobs: add --elastic");
  if (!options.elastic) return;
  const int most = options.num_nodes * options.num_ranks;
  require(options.min_nodes >= 0 && options.min_nodes <= options.num_nodes, "--nnodes is ", options.min_nodes,
          ":", options.num_nodes, "; expected MIN:MAX with MIN from 1 to MAX");
  require(options.min_ranks >= 0 && options.min_ranks <= most, "--min-ranks is ", options.min_ranks,
          "; with ", most, " ranks at most it goes from 1 to ", most);
  require(options.join_wait_s >= 0, "--join-wait is ", options.join_wait_s, "; expected seconds");
  require(options.num_spares >= 0 && options.num_spares <= kMostProcesses, "--spares is ", options.num_spares,
          "; it goes from 0 to ", kMostProcesses);
}

void check(const LaunchOptions& options) {
  require(!options.command.empty(),
          "there is no program to launch: trireme launch -n N -- PROGRAM ARGUMENTS");
  const auto demand = [](const char* option, int found, int least, int most) {
    require(found >= least && found <= most, option, " is ", found, "; it goes from ", least, " to ", most);
  };
  demand("-n", options.num_ranks, 1, kMostProcesses);
  demand("--nnodes", options.num_nodes, 1, kMostHosts);
  demand("--servers", options.num_servers, 0, kMostProcesses);
  // Hosts of an elastic job are numbered as they join: one that returns has another number.
  const int most_node = options.elastic && options.num_nodes > 1 ? kMostHosts : options.num_nodes - 1;
  demand("--node-rank", options.node_rank, 0, most_node);
  require(options.master_port >= 0 && options.master_port <= 65534, "--master-port is ", options.master_port,
          "; it goes from 1 to 65534 (programs that serve a rendezvous of their own get the port after it)");
  require(
      options.num_servers == 0 || options.num_nodes == 1,
      "--servers starts servers that only this host reaches; for several hosts start them yourself (trireme "
      "serve-coordinator, trireme serve-params) and set ps.coordinator");
  demand("--metrics-port", options.metrics_port.value_or(0), 0, 65535);
  require(options.metrics_port || options.metrics_token_file.empty(),
          "--metrics-token-file is for the port of --metrics-port, which is missing");
  require(options.frozen_grace_s >= 0, "--frozen-grace is ", options.frozen_grace_s,
          "; expected seconds, or 0 to wait without end");
  require(options.max_restarts >= 0, "--max-restarts is ", options.max_restarts, "; 0 means none");
  check_elasticity(options);
  require(options.num_nodes == 1 || !options.rendezvous.empty() ||
              (!options.master_addr.empty() && options.master_port != 0),
          "with --nnodes ", options.num_nodes,
          " all hosts have to know the same address: give --master-addr (a name or address of the host with "
          "--node-rank 0) and --master-port (a free port there)");
}

/// Resources that all starts of a job use.
struct Job {
  wire::Endpoint store;                         ///< for the rendezvous of the ranks
  std::shared_ptr<wire::StoreServer> served{};  ///< on the first host
  wire::Secret secret{};
  wire::Secret secret_of_servers{};          ///< that of the servers in ps.coordinator; empty: none is given
  std::shared_ptr<wire::Socket> reserved{};  ///< keeps master_port free; null: the user chose it
  int master_port = 0;                       ///< for programs that serve a rendezvous of their own
  std::string start_id{};                    ///< of this start and its restarts

  /// The store of an elastic job may move.
  void use_store(const wire::Endpoint& present) {
    if (present.text() == store.text()) return;
    store = present;
    master_port = present.port + 1;
  }
};

std::optional<std::string> variable(const std::string& name) {
  const char* value = ::getenv(name.c_str());
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

/// On one host, other users do not need to have it.
wire::Secret find_secret(const LaunchOptions& options) {
  if (!options.secret_file.empty()) return wire::Secret::from_file(options.secret_file);
  auto given = wire::Secret::from_variables(variable);
  return given.empty() && options.num_nodes == 1 && options.rendezvous.empty() ? wire::Secret::random()
                                                                               : given;
}

/// Bound before any rank starts, so that no other program gets the port in between. It does not listen: a
/// program that serves the port (with SO_REUSEADDR, as torch's store does) can bind it as well.
std::shared_ptr<wire::Socket> reserve_port() {
  return std::make_shared<wire::Socket>(wire::bind_to({kLoopback, 0}));
}

/// Unique for every start on any host.
std::string new_start_id() {
  std::random_device random;
  std::array<char, 24> id{};
  std::snprintf(id.data(), id.size(), "%08x%08x", random(), random());
  return id.data();
}

Job prepare_job(const LaunchOptions& options, Notes& notes) {
  Job job{.store = {options.num_nodes == 1 ? kLoopback : options.master_addr, options.master_port},
          .secret = find_secret(options),
          .secret_of_servers = wire::Secret::from_variables(variable, "TRIREME_PS_SECRET"),
          .start_id = new_start_id()};
  if (!options.rendezvous.empty()) return job;  // the leading launcher serves the store
  wire::secret_at(job.store, job.secret);       // throws if a secret is required
  if (options.node_rank == 0) {
    try {
      job.served = std::make_shared<wire::StoreServer>(
          wire::listen_at(job.store),
          wire::StoreServerOptions{.secret = job.secret,
                                   .complain = [&notes](const std::string& what) { notes.add(what); }});
    } catch (const CommError& error) {
      throw CommError(text("cannot serve the rendezvous at ", job.store.text(), ": ", error.what()));
    }
    job.store = job.served->endpoint();
  }
  if (options.master_port == 0) job.reserved = reserve_port();
  job.master_port = job.reserved ? job.reserved->local().port : options.master_port + 1;
  return job;
}

/// This process's environment with some variables set, and without those of other launchers that contradict
/// them.
std::vector<std::string> environment_with(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view line = *entry;
    const std::string name(line.substr(0, line.find('=')));
    const bool foreign = name.starts_with("TORCHELASTIC_") || name == "TRIREME_SECRET_FILE" ||
                         name == "TRIREME_PS_SECRET" || name == "TRIREME_PS_SECRET_FILE" ||
                         name == "TRIREME_STATUS_FD" || name == "GROUP_RANK" || name == "TRIREME_MEMBER" ||
                         name == "TRIREME_SPARE" || name == "TRIREME_STORE_FILE";
    if (!foreign && !changes.contains(name)) result.emplace_back(line);
  }
  for (const auto& [name, value] : changes) result.push_back(name + "=" + value);
  return result;
}

/// The parameter servers, if the options ask for any.
struct Servers {
  wire::Secret secret = wire::Secret::random();  ///< not given to ranks, which have the keys of their workers
  TemporaryFolder folder;
  ParameterCluster cluster;
  explicit Servers(const LaunchOptions& options)
      : cluster({.num_servers = options.num_servers,
                 .folder = folder.path(),
                 .environment = {"TRIREME_PS_SECRET=" + secret.reveal()}}) {}
};

/// State that is common to all starts of the ranks.
struct Launcher {
  const LaunchOptions& options;
  const std::string program;
  Screen screen{};
  SignalQueue signals{};
  Notes notes{};
  Job job{};
  std::unique_ptr<Servers> servers{};          ///< null: none
  std::unique_ptr<EvidenceWriter> evidence{};  ///< null: evidence is not kept
  std::unique_ptr<LaunchMetrics> metrics{};    ///< null: none
  std::unique_ptr<ElasticJob> elastic{};       ///< null: the job is not elastic
};

/// The place of a process in a world, and its name for a parameter server.
struct Place {
  int rank = 0, world_size = 1;
  int local_rank = 0, local_size = 1;
  int restart = 0;
  std::string worker = {};
};

RankStart plan_rank(const Launcher& launcher, const Place& place) {
  const LaunchOptions& options = launcher.options;
  const Job& job = launcher.job;
  const Screen& screen = launcher.screen;
  const std::string given = options.rendezvous.empty() ? options.master_addr : job.store.host;
  const std::string addr = given.empty() ? kLoopback : given;
  std::map<std::string, std::string> variables = {
      {"RANK", text(place.rank)},
      {"WORLD_SIZE", text(place.world_size)},
      {"LOCAL_RANK", text(place.local_rank)},
      {"LOCAL_WORLD_SIZE", text(place.local_size)},
      {"MASTER_ADDR", addr},
      {"MASTER_PORT", text(job.master_port)},
      {"TRIREME_STORE", job.store.text()},
      {"TRIREME_SECRET", job.secret.reveal()},
      {"TRIREME_RESTART_COUNT", text(place.restart)},
      {"TRIREME_START_ID", job.start_id},
  };
  if (launcher.servers) variables["TRIREME_PS_COORDINATOR"] = launcher.servers->cluster.address();
  const wire::Secret& of_servers = launcher.servers ? launcher.servers->secret : job.secret_of_servers;
  if (!of_servers.empty()) {
    variables["TRIREME_PS_SECRET"] = of_servers.of_role("worker." + place.worker).reveal();
  }
  if (::getenv("OMP_NUM_THREADS") == nullptr) {
    variables["OMP_NUM_THREADS"] = text(std::max(1, available_cores() / options.num_ranks));
  }
  if (screen.shows_bars() && place.rank == 0) variables["TRIREME_TERMINAL"] = text(screen.bar_columns());
  return {.rank = place.rank,
          .program = launcher.program,
          .arguments = options.command,
          .environment = environment_with(variables),
          .inherits_stdin = place.rank == 0 && ::isatty(STDIN_FILENO) == 0};
}

/// A member of an elastic job. Its rank changes, and with it its worker number. So the name of its key is not
/// a worker's number.
RankStart plan_member(const Launcher& launcher, const wire::ElasticMember& member, Place place) {
  place.worker = "member-" + member.id;
  RankStart start = plan_rank(launcher, place);
  start.member = member;
  start.environment.push_back("TRIREME_MEMBER=" + member.id);
  start.environment.push_back(
      text("TRIREME_MOST_RANKS=", launcher.options.num_nodes * launcher.options.num_ranks));
  if (const std::string file = launcher.elastic->store_file(); !file.empty())
    start.environment.push_back("TRIREME_STORE_FILE=" + file);
  return start;
}

RankStart plan_spare(Launcher& launcher) {
  RankStart start = plan_member(launcher, launcher.elastic->host().new_spare(), {});
  start.rank = -1;
  start.inherits_stdin = false;
  start.environment.push_back("TRIREME_SPARE=1");
  return start;
}

/// New ranks of this host in the present world. Before the first world, the spares.
std::vector<RankStart> plan_new_members(Launcher& launcher, const std::vector<SupervisedRank>& living) {
  std::vector<RankStart> starts;
  const wire::ElasticWorld& world = launcher.elastic->host().world();
  if (world.generation < 0) {
    for (int spare = 0; spare < launcher.options.num_spares; ++spare) starts.push_back(plan_spare(launcher));
  }
  for (int rank = 0; rank < world.size(); ++rank) {
    const wire::ElasticMember& member = world.ranks[static_cast<std::size_t>(rank)];
    const bool is_there = std::ranges::any_of(
        living, [&](const SupervisedRank& each) { return each.process->member() == member; });
    if (member.node != launcher.elastic->host().node() || is_there) continue;
    starts.push_back(plan_member(launcher, member,
                                 {.rank = rank,
                                  .world_size = world.size(),
                                  .local_rank = world.local_rank_of(rank),
                                  .local_size = world.local_size_of(rank),
                                  .restart = world.generation}));
  }
  return starts;
}

/// The end of a world of an elastic job, and its processes that remain on this host.
struct LeftOfWorld {
  WorldStory story;
  std::optional<wire::ElasticWorld> next = std::nullopt;  ///< none: the job has ended
  std::vector<SupervisedRank> living = {};
};

/// Runs the present world; before the first one, waits for it.
LeftOfWorld run_elastic_world(Launcher& launcher, std::vector<SupervisedRank> living) {
  launcher.job.use_store(launcher.elastic->host().store());
  const std::vector<RankStart> starts = plan_new_members(launcher, living);
  const auto keep = [&](const autopsy::Evidence& evidence) {
    if (launcher.evidence) launcher.evidence->write(evidence);
  };
  Supervisor supervisor(launcher.options, launcher.screen, launcher.signals, launcher.notes, keep,
                        launcher.servers ? &launcher.servers->cluster : nullptr, launcher.elastic.get());
  supervisor.adopt(std::move(living));
  supervisor.start(starts);
  if (launcher.metrics) launcher.metrics->set_ranks(supervisor.ranks());
  LeftOfWorld left{.story = supervisor.run()};
  left.next = supervisor.next_world();
  if (left.next) left.living = supervisor.release();
  return left;
}

WorldStory run_world(Launcher& launcher, int restart) {
  std::vector<RankStart> starts;
  const LaunchOptions& options = launcher.options;
  for (int local_rank = 0; local_rank < options.num_ranks; ++local_rank) {
    const int rank = options.node_rank * options.num_ranks + local_rank;
    starts.push_back(plan_rank(launcher, {.rank = rank,
                                          .world_size = options.num_nodes * options.num_ranks,
                                          .local_rank = local_rank,
                                          .local_size = options.num_ranks,
                                          .restart = restart,
                                          .worker = text(rank)}));
  }
  const auto keep = [&](const autopsy::Evidence& evidence) {
    if (launcher.evidence) launcher.evidence->write(evidence);
  };
  Supervisor supervisor(launcher.options, launcher.screen, launcher.signals, launcher.notes, keep,
                        launcher.servers ? &launcher.servers->cluster : nullptr);
  supervisor.start(starts);
  if (launcher.metrics) launcher.metrics->set_ranks(supervisor.ranks());
  return supervisor.run();
}

/// SIGINT, SIGTERM or SIGHUP, if one has arrived; 0: none. Other signals do not request a stop.
int stop_signal(SignalQueue& signals) {
  for (int signal = signals.next(); signal != 0; signal = signals.next()) {
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) return signal;
  }
  return 0;
}

/// The ranks of other hosts need the store for an orderly end.
void wait_for_other_hosts(Launcher& launcher) {
  if (!launcher.job.served || launcher.options.num_nodes == 1) return;
  const auto deadline = Deadline::after_s(kGoodbye_s), patience = Deadline::after_s(kSilent_s);
  for (bool said = false; !launcher.job.served->wait_until_left(kLookForSignals_s);) {
    if (stop_signal(launcher.signals) != 0) return;
    if (!said && patience.expired()) {
      said = true;
      launcher.screen.note(
          text("all ranks of this host have ended well; the store of the job stays for up to ",
               human_duration(kGoodbye_s), ", so that ", launcher.job.served->num_clients(),
               " connection(s) of other hosts' ranks can end in good order (Ctrl-C: it ends now)"));
    }
    if (!deadline.expired()) continue;
    launcher.screen.note(text(launcher.job.served->num_clients(),
                              " connection(s) of other hosts' ranks have not "
                              "ended within ",
                              human_duration(kGoodbye_s), "; the store of the job ends now"));
    return;
  }
}

/// Keeps the store until other hosts have read that the job has ended.
void end_elastic_job(Launcher& launcher, int exit_code) {
  const bool is_leaving = launcher.elastic->host().is_leaving() && !launcher.elastic->host().job().end;
  if (is_leaving) launcher.elastic->hand_over();
  const auto deadline = Deadline::after_s(kGoodbye_s);
  while (launcher.elastic->hears_others() && !deadline.expired() && stop_signal(launcher.signals) == 0)
    std::this_thread::sleep_for(std::chrono::duration<double>(kLookForSignals_s));
  if (!is_leaving) launcher.elastic->finish(exit_code);
}

std::unique_ptr<EvidenceWriter> evidence_writer(Launcher& launcher) {
  const LaunchOptions& options = launcher.options;
  if (options.autopsy_folder.empty()) return nullptr;
  const std::filesystem::path folder = options.autopsy_folder;
  const int node = launcher.elastic ? launcher.elastic->host().node() : options.node_rank;
  return std::make_unique<EvidenceWriter>(EvidenceWriter::Options{
      .file = folder / autopsy::file_name(node, options.num_nodes),
      .start_id = launcher.job.start_id,
      .complain = [&notes = launcher.notes](const std::string& what) { notes.add(what); }});
}

/// "elastic: world 2 has 3 rank(s): rank 3 continues as rank 2; the others keep their ranks".
std::string describe_next(const wire::ElasticWorld& before, const wire::ElasticWorld& next) {
  std::vector<std::string> changes;
  for (int rank = 0; rank < next.size(); ++rank) {
    const int was = before.rank_of(next.ranks[static_cast<std::size_t>(rank)].id);
    if (was < 0) changes.push_back(text("rank ", rank, " is a new process"));
    if (was >= 0 && was != rank) changes.push_back(text("rank ", was, " continues as rank ", rank));
  }
  const bool some_stay = std::ssize(changes) < next.size();
  return text("elastic: world ", next.generation, " has ", next.size(), " rank(s)",
              changes.empty() ? ", each as before" : ": " + join(changes),
              !changes.empty() && some_stay ? "; the others keep their ranks" : "");
}

/// The job's worlds, up to its end.
WorldStory run_worlds(Launcher& launcher) {
  std::vector<SupervisedRank> living;
  for (;;) {
    LeftOfWorld left = run_elastic_world(launcher, std::move(living));
    if (!left.next) return left.story;
    for (const auto& line : report(left.story)) launcher.screen.note(line);
    const wire::ElasticWorld before = launcher.elastic->host().world();
    if (before.generation >= 0) launcher.screen.note(describe_next(before, *left.next));
    launcher.elastic->host().enter(*left.next);
    living = std::move(left.living);
  }
}

std::unique_ptr<ElasticJob> join_elastic_job(Launcher& launcher) {
  const LaunchOptions& options = launcher.options;
  const int min_hosts = options.min_nodes > 0 ? options.min_nodes : options.num_nodes;
  ElasticJobOptions job{
      .capacity = options.num_ranks,
      .limits = {.wanted_ranks = options.num_nodes * options.num_ranks,
                 .min_ranks = options.min_ranks > 0 ? options.min_ranks : min_hosts * options.num_ranks,
                 .wanted_hosts = options.num_nodes,
                 .min_hosts = min_hosts,
                 .max_restarts = options.max_restarts,
                 .join_wait_s = options.join_wait_s},
      .secret = launcher.job.secret,
      .store = launcher.job.store,
      .is_first = options.node_rank == 0,
      .rendezvous = options.rendezvous,
      .address = options.local_addr,
      .port = options.master_port,
      .start_id = launcher.job.start_id,
      .say = [&screen = launcher.screen](const std::string& line) { screen.note(line); },
      .note = [&notes = launcher.notes](const std::string& line) { notes.add(line); },
      .stop_signal = [&signals = launcher.signals] { return stop_signal(signals); }};
  return std::make_unique<ElasticJob>(std::move(job));
}

}  // namespace

int launch(const LaunchOptions& options) try {
  check(options);
  ::signal(SIGPIPE, SIG_IGN);  // a reader of the ranks' output may exit before the ranks
  Launcher launcher{.options = options, .program = find_program(options.command.front())};
  Screen& screen = launcher.screen;
  launcher.job = prepare_job(options, launcher.notes);
  if (options.elastic) launcher.elastic = join_elastic_job(launcher);
  if (options.elastic) launcher.job.start_id = launcher.elastic->start_id();
  launcher.evidence = evidence_writer(launcher);
  if (options.num_servers > 0) launcher.servers = std::make_unique<Servers>(options);
  if (options.metrics_port) {
    launcher.metrics = std::make_unique<LaunchMetrics>(
        MetricsOptions{.endpoint = {options.metrics_address, *options.metrics_port},
                       .token_file = options.metrics_token_file});
    screen.note(launcher.metrics->describe());
  }
  const int cores = available_cores();
  if (options.num_ranks > cores) {
    screen.note(
        text("note: ", options.num_ranks, " ranks on ", cores, " core(s) take turns; expect no gain"));
  }
  for (int restart = 0;; ++restart) {
    const auto world = launcher.elastic ? run_worlds(launcher) : run_world(launcher, restart);
    for (const auto& line : report(world)) screen.note(line);
    const int code = exit_code_of(world);
    if (launcher.elastic) end_elastic_job(launcher, code);
    if (!options.elastic && code == kExitOk) wait_for_other_hosts(launcher);
    const bool may_restart = !options.elastic && restart < options.max_restarts;
    if (code == kExitOk || world.told_to_stop != 0 || ends_the_job(code) || !may_restart) {
      if (launcher.evidence) launcher.evidence->finish();
      for (const auto& note : launcher.notes.take()) screen.note(note);
      return code;
    }
    screen.note(text("starting all ", options.num_ranks, " rank(s) again, restart ", restart + 1, " of ",
                     options.max_restarts));
  }
} catch (const ToldToStop& stop) {
  std::fprintf(stderr, "trireme: %s\n", stop.what());
  return 128 + stop.signal;
}

}  // namespace trireme::cli
