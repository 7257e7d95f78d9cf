// Injects random faults into real ranks, and checks whether the autopsy names the rank and the cause:
//   bench_autopsy [--faults N] [--seed S] [--kinds K,...] [--smoke]
// Each fault starts three ranks under trireme launch, disturbs one of them and reads the launcher's evidence.
// Prints one JSON object. Kinds that need root, control groups or a loop device are skipped without them.

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "bench/autopsy/disturbances.h"
#include "bench/autopsy/fault.h"
#include "trireme/autopsy/evidence_file.h"
#include "trireme/autopsy/verdict.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/run_main.h"

namespace trireme::bench {
namespace {

constexpr int kRanks = 3;
// The speed of a run is steady after some seconds.
constexpr double kStart_s = 60, kSteady_s = 3, kAnswer_s = 15;

std::string own_folder() { return fs::read_symlink("/proc/self/exe").parent_path().string(); }

pid_t start(const std::vector<std::string>& words, const fs::path& output) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setpgid(0, 0);
  const int file = ::open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(file, STDOUT_FILENO);
  ::dup2(file, STDERR_FILENO);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

/// One start of the ranks, with the resources of the faults.
struct World {
  fs::path folder;
  FreezableDisk& disk;
  Feeder& feeder;
  int victim = 0;
  std::vector<pid_t> launchers{};
  std::vector<int> pids{};
  std::unique_ptr<Cable> cable{};
  std::vector<std::function<void()>> after{};  ///< cleanup
  int pid() const { return pids[static_cast<std::size_t>(victim)]; }
};

struct Kind {
  std::string name;
  std::string cause;
  std::function<void(World&)> act = nullptr;  ///< null: the rank does it itself
  bool needs_groups = false, needs_disk = false, needs_hosts = false;
};

void send(World& world, int signal) { ::kill(world.pid(), signal); }

void hold(World& world, const std::shared_ptr<Group>& group) {
  world.after.push_back([group] {});
}

void limit_memory(World& world) {
  const auto group = std::make_shared<Group>("memory", world.pid());
  group->set("memory.limit_in_bytes", "32M");
  group->enter();
  hold(world, group);
}

/// A process of the highest priority on the core of the victim, whose priority is the lowest.
void crowd_out(World& world) {
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(0, &core);
  for (const auto& task : fs::directory_iterator(text("/proc/", world.pid(), "/task"))) {
    const int tid = std::stoi(task.path().filename());
    ::sched_setaffinity(tid, sizeof core, &core);
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(tid), 19);
  }
  const pid_t hog = ::fork();
  if (hog == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::sched_setaffinity(0, sizeof core, &core);
    ::setpriority(PRIO_PROCESS, 0, -20);
    for (volatile bool go_on = true; go_on;) {
    }
  }
  world.after.push_back([hog] {
    ::kill(hog, SIGKILL);
    ::waitpid(hog, nullptr, 0);
  });
}

std::vector<Kind> all_kinds() {
  return {
      {"sigkill", "killed", [](World& world) { send(world, SIGKILL); }},
      {"sighup", "killed", [](World& world) { send(world, SIGHUP); }},
      {"sigstop", "stopped", [](World& world) { send(world, SIGSTOP); }},
      {"debugger", "stopped", [](World& world) { ::ptrace(PTRACE_ATTACH, world.pid(), nullptr, nullptr); }},
      {"freezer", "stopped",
       [](World& world) {
         const auto group = std::make_shared<Group>("freezer", world.pid());
         group->enter();
         group->set("freezer.state", "FROZEN");
         world.after.push_back([group] { group->set("freezer.state", "THAWED"); });
       },
       true},
      {"memory-limit", "memory limit", limit_memory, true},
      {"swapping", "swapping", limit_memory, true},
      {"cpu-quota", "no cores",
       [](World& world) {
         const auto group = std::make_shared<Group>("cpu", world.pid());
         group->set("cpu.cfs_period_us", "1000000");
         group->set("cpu.cfs_quota_us", "1000");
         group->enter();
         hold(world, group);
       },
       true},
      {"crowded-core", "no cores", crowd_out},
      {"throw", "exception"},
      {"libtorch", "exception"},
      {"data-error", "exception"},
      {"segv", "crash"},
      {"abort", "crash"},
      {"mismatch-size", "mismatched operations"},
      {"mismatch-kind", "mismatched operations"},
      {"sleep", "never entered"},
      {"lock", "never entered"},
      {"spin", "never entered"},
      {"deadlock", "deadlock"},
      {"data", "waiting for data", [](World& world) { world.feeder.leave_out(world.victim); }},
      {"disk", "disk", [](World& world) { world.disk.freeze(); }, false, true},
      {"link", "link", [](World& world) { world.cable->cut(); }, false, false, true},
      {"sigterm-launcher", "told to stop", [](World& world) { ::kill(world.launchers[0], SIGTERM); }},
  };
}

struct Outcome {
  bool right_rank = false, right_cause = false;
  double seconds = 0;
  std::string words;
};

std::vector<int> children_of(int pid) {
  std::ifstream file(text("/proc/", pid, "/task/", pid, "/children"));
  std::vector<int> result;
  for (int child = 0; file >> child;) result.push_back(child);
  return result;
}

template <class Ready>
bool wait_until(double max_s, const Ready& ready) {
  for (const auto deadline = Deadline::after_s(max_s); !ready();) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

bool all_are_under_way(const fs::path& output, int num_ranks) {
  const std::string words = read_file(output);
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (words.find(text("[", rank, "] step 20")) == std::string::npos) return false;
  }
  return true;
}

/// Starts the ranks: three on this host, or two on each of two hosts.
void start_ranks(World& world, const Kind& kind) {
  const std::string own = own_folder(), folder = world.folder.string();
  std::vector<std::string> of_rank = {"--",
                                      own + "/bench_autopsy",
                                      "rank",
                                      kind.name,
                                      text(world.victim),
                                      "21",
                                      folder,
                                      world.disk.there() ? world.disk.path() : folder};
  const std::vector<std::string> launch = {own + "/trireme", "launch", "--autopsy", folder, "-n"};
  const auto start_with = [&](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), launch.begin(), launch.end());
    words.insert(words.end(), more.begin(), more.end());
    words.insert(words.end(), of_rank.begin(), of_rank.end());
    world.launchers.push_back(start(words, world.folder / "output"));
  };
  if (!kind.needs_hosts) return start_with({}, {text(kRanks)});
  world.cable = std::make_unique<Cable>();
  const fs::path secret = world.folder / "secret";
  put(secret, "the secret of these hosts\n");
  fs::permissions(secret, fs::perms(0600));
  for (const int host : {0, 1}) {
    // The network namespaces share kernel and processes. Only this variable tells ranks that hosts share no
    // memory.
    start_with({"/usr/bin/env", "TRIREME_HOST_ID=" + world.cable->name(host), "ip", "netns", "exec",
                world.cable->name(host)},
               {"2", "--nnodes", "2", "--node-rank", text(host), "--master-addr", Cable::address(0),
                "--master-port", "29500", "--secret-file", secret.string()});
  }
}

/// A cut link has no single failing rank, because it is between all ranks of both hosts. A stopped launcher
/// has no failing rank at all.
bool is_right_rank(const autopsy::Verdict& verdict, const Kind& kind, int victim) {
  if (kind.cause == "told to stop") return verdict.ranks.empty();
  if (kind.needs_hosts) return !verdict.ranks.empty();
  return std::ranges::find(verdict.ranks, victim) != verdict.ranks.end() &&
         (verdict.ranks.size() == 1 || kind.cause == "deadlock");
}

Outcome commit(const Kind& kind, int victim, double delay_s, FreezableDisk& disk, const fs::path& folder) {
  fs::create_directory(folder);
  Feeder feeder(folder);
  World world{.folder = folder, .disk = disk, .feeder = feeder, .victim = victim};
  start_ranks(world, kind);
  const int num_ranks = kind.needs_hosts ? kMostRanks : kRanks;
  const fs::path output = folder / "output";
  Outcome outcome;
  const bool under_way =
      wait_until(kStart_s, [&] { return fs::exists(output) && all_are_under_way(output, num_ranks); });
  for (const pid_t launcher : world.launchers) {
    for (const int child : children_of(launcher)) world.pids.push_back(child);
  }
  if (under_way && static_cast<int>(world.pids.size()) == num_ranks) {
    std::this_thread::sleep_for(Seconds(delay_s));
    const double began_s = now_s();
    if (kind.act) kind.act(world);
    put(folder / "now", "");
    std::optional<autopsy::Evidence> evidence;
    wait_until(kAnswer_s, [&] { return (evidence = autopsy::read_evidence(folder)).has_value(); });
    outcome.seconds = now_s() - began_s;
    if (evidence) {
      const autopsy::Verdict verdict = autopsy::judge(*evidence);
      outcome.right_cause = verdict.cause == kind.cause;
      outcome.right_rank = is_right_rank(verdict, kind, victim);
      outcome.words = text(verdict.cause, ": ", autopsy::paragraph(verdict));
    }
  } else {
    outcome.words = "the ranks did not start: " + read_file(output);
  }
  disk.thaw();
  for (const int pid : world.pids) ::kill(pid, SIGKILL);
  for (const pid_t launcher : world.launchers) {
    ::kill(launcher, SIGKILL);
    ::waitpid(launcher, nullptr, 0);
  }
  for (const auto& undo : world.after) undo();
  world.after.clear();
  for (const int pid : world.pids) wait_until(5, [&] { return ::kill(pid, 0) != 0; });
  return outcome;
}

double quantile(std::vector<double> values, double part) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1))];
}

struct Options {
  int faults = 22;
  unsigned seed = 1;
  std::vector<std::string> kinds{};
};

int measure(const Options& options) {
  // Mounts are in this process's namespace, and end with it.
  const bool has_root = ::geteuid() == 0 && ::unshare(CLONE_NEWNS) == 0 &&
                        std::system("mount --make-rprivate / 2>/dev/null") == 0;
  const fs::path folder = fs::temp_directory_path() / text("trireme-autopsy-", ::getpid());
  fs::create_directory(folder);
  nlohmann::ordered_json json;
  {
    FreezableDisk disk(folder);
    const bool has_groups = has_root && ::access((kGroups / "memory/cgroup.procs").c_str(), W_OK) == 0;
    const bool has_hosts = has_root && Cable().there();
    std::vector<Kind> kinds = all_kinds();
    std::erase_if(kinds, [&](const Kind& kind) {
      const bool is_asked =
          options.kinds.empty() || std::ranges::find(options.kinds, kind.name) != options.kinds.end();
      return !is_asked || (kind.needs_groups && !has_groups) || (kind.needs_disk && !disk.there()) ||
             (kind.needs_hosts && !has_hosts);
    });
    require(!kinds.empty(), "no kind of fault is left");
    std::mt19937 random(options.seed);
    std::map<std::string, std::vector<Outcome>> outcomes;
    int right_ranks = 0, right_causes = 0;
    std::vector<double> seconds;
    for (int number = 0; number < options.faults; ++number) {
      // Kinds take turns. The victim and the time are random.
      const Kind& kind = kinds[static_cast<std::size_t>(number) % kinds.size()];
      const int victim = static_cast<int>(random() % kRanks);
      const double delay_s = kSteady_s + static_cast<double>(random() % 1000) / 1000;
      const Outcome outcome = commit(kind, victim, delay_s, disk, folder / text(number));
      outcomes[kind.name].push_back(outcome);
      right_ranks += outcome.right_rank;
      right_causes += outcome.right_cause;
      seconds.push_back(outcome.seconds);
      if (!outcome.right_rank || !outcome.right_cause)
        std::cerr << "fault " << number << ", " << kind.name << " of rank " << victim << ": " << outcome.words
                  << std::endl;
    }
    json["faults"] = options.faults;
    json["seed"] = options.seed;
    json["right_rank"] = right_ranks;
    json["right_cause"] = right_causes;
    json["seconds_median"] = quantile(seconds, 0.5);
    json["seconds_longest"] = quantile(seconds, 1);
    for (const Kind& kind : kinds) {
      const auto found = outcomes.find(kind.name);
      if (found == outcomes.end()) continue;
      std::vector<double> of_kind;
      int ranks = 0, causes = 0;
      for (const Outcome& outcome : found->second) {
        ranks += outcome.right_rank;
        causes += outcome.right_cause;
        of_kind.push_back(outcome.seconds);
      }
      json["kinds"].push_back({{"kind", kind.name},
                               {"cause", kind.cause},
                               {"faults", found->second.size()},
                               {"right_rank", ranks},
                               {"right_cause", causes},
                               {"seconds_median", quantile(of_kind, 0.5)},
                               {"seconds_longest", quantile(of_kind, 1)}});
    }
  }
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  std::cout << json.dump(2) << std::endl;
  return 0;
}

int run(const std::vector<std::string>& words) {
  if (words.size() == 6 && words[0] == "rank") {
    return run_rank({.kind = words[1],
                     .victim = std::stoi(words[2]),
                     .step = std::stoi(words[3]),
                     .folder = words[4],
                     .disk = words[5]});
  }
  Options options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool has_value = i + 1 < words.size();
    if (words[i] == "--smoke")
      options = {.faults = 1, .seed = 1, .kinds = {"sigkill"}};
    else if (words[i] == "--faults" && has_value)
      options.faults = std::stoi(words[++i]);
    else if (words[i] == "--seed" && has_value)
      options.seed = static_cast<unsigned>(std::stoul(words[++i]));
    else if (words[i] == "--kinds" && has_value)
      options.kinds = split(words[++i], ',');
    else
      throw InvalidArgument(
          text("unknown word '", words[i], "'; expected --faults N, --seed S, --kinds K,... or --smoke"));
  }
  return measure(options);
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words[0] == "rank") return trireme::bench::run(words);  // may throw
  return trireme::run_main([&] { return trireme::bench::run(words); });
}
