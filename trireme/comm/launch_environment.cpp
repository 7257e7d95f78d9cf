#include "trireme/comm/launch_environment.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <tuple>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/wire/socket.h"

namespace trireme::comm {
namespace {

class Variables {
 public:
  explicit Variables(const Lookup& lookup) : lookup_(lookup) {}

  std::optional<std::string> find(const std::string& name) const {
    auto value = lookup_(name);
    if (value && value->empty()) return std::nullopt;
    return value;
  }
  bool has(const std::string& name) const { return find(name).has_value(); }

  /// The first of these variables that is set, as a number in [least, most].
  std::optional<int> find_number(const std::vector<std::string>& names, int least, int most) const {
    for (const auto& name : names) {
      if (const auto value = find(name)) return number(name, *value, least, most);
    }
    return std::nullopt;
  }
  int number_of(const std::string& name, int least, int most, const std::string& because) const {
    const auto value = find(name);
    require(value.has_value(), "the environment variable ", name, " is not set, but ", because, ": set ",
            name, " to a number from ", least, " on, or start with 'trireme launch'");
    return number(name, *value, least, most);
  }

 private:
  static int number(const std::string& name, const std::string& value, int least, int most) {
    int result = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    require(error == std::errc() && end == value.data() + value.size() && result >= least && result <= most,
            "the environment variable ", name, " is '", value, "'; expected a whole number from ", least,
            " to ", most);
    return result;
  }

  const Lookup& lookup_;
};

constexpr int kMostRanks = 1 << 20;
constexpr int kMostPort = 65535;

// Ports below 20000 are often used by services, those from 32768 on by outgoing connections.
int port_from(const std::string& job) {
  std::uint32_t hash = 2166136261u;
  for (const unsigned char c : job) hash = (hash ^ c) * 16777619u;
  return 20000 + static_cast<int>(hash % 12000);
}

void check_ranks(const LaunchEnvironment& environment, const std::string& rank_name,
                 const std::string& size_name) {
  require(environment.rank < environment.world_size, "the environment variable ", rank_name, " is ",
          environment.rank, ", but ", size_name, " is ", environment.world_size,
          ": ranks count from 0 and have to be below the world size");
  require(environment.local_world_size <= environment.world_size, "there are ", environment.local_world_size,
          " ranks on this host in a world of ", environment.world_size,
          ": the local world size cannot be larger than the world size");
  require(environment.local_rank < environment.local_world_size, "the local rank is ", environment.local_rank,
          ", but there are ", environment.local_world_size,
          " ranks on this host: local ranks count from 0 and have to be below the local world size");
}

/// Identifies the process that started this one, which outlives restarts of this one.
std::string identity_of_parent() {
  const int parent = ::getppid();
  std::ifstream file(text("/proc/", parent, "/stat"));
  const std::string line{std::istreambuf_iterator<char>(file), {}};
  // The name is in parentheses and may contain any character. The 20th word after it is the start time of the
  // process.
  const std::vector<std::string> words = split(line.substr(line.rfind(')') + 1), ' ');
  return text("child of ", parent, " of ", words.size() > 20 ? words[20] : "", " on ", host_name());
}

/// torchrun's default run id is "none" for every run.
std::string start_of_torchrun(const Variables& variables) {
  const std::string chosen = variables.find("TORCHELASTIC_RUN_ID").value_or("none");
  return chosen == "none" ? "" : "torchrun " + chosen;
}

LaunchEnvironment read_plain(const Variables& variables) {
  LaunchEnvironment result;
  const bool torchrun = variables.has("TORCHELASTIC_RUN_ID") || variables.has("TORCHELASTIC_RESTART_COUNT");
  result.launcher = torchrun ? "torchrun" : "env";
  result.rank = variables.number_of("RANK", 0, kMostRanks, "WORLD_SIZE is");
  result.world_size = variables.number_of("WORLD_SIZE", 1, kMostRanks, "RANK is");
  const bool alone = result.world_size == 1;
  result.one_host = variables.find_number({"LOCAL_WORLD_SIZE"}, 1, kMostRanks) == result.world_size;
  result.local_world_size = variables.find_number({"LOCAL_WORLD_SIZE"}, 1, kMostRanks)
                                .value_or(variables.has("LOCAL_RANK") && !alone ? 0 : result.world_size);
  result.local_rank = variables.find_number({"LOCAL_RANK"}, 0, kMostRanks).value_or(-1);
  if (result.local_world_size == 0) result.local_world_size = result.world_size;
  if (result.local_rank < 0) result.local_rank = result.rank % result.local_world_size;
  check_ranks(result, "RANK", "WORLD_SIZE");
  // A Trireme launcher around torchrun serves the store of another world.
  const auto store = torchrun ? std::nullopt : variables.find("TRIREME_STORE");
  const auto addr = variables.find("MASTER_ADDR");
  require(
      alone || store.has_value() || addr.has_value(), "the environment variable WORLD_SIZE is ",
      result.world_size,
      ", but MASTER_ADDR is not set: set it to the address of the host of rank 0 (127.0.0.1 when all ranks "
      "share a host), or start with 'trireme launch'");
  if (addr) result.master_addr = *addr;
  result.master_port = variables.find_number({"MASTER_PORT"}, 1, kMostPort).value_or(result.master_port);
  if (variables.find("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    result.store_host = StoreHost::kRankZeroAtPort;
  } else if (store) {
    const auto endpoint = wire::Endpoint::parse(*store, "the environment variable TRIREME_STORE");
    result.store_host = StoreHost::kLauncher;
    result.master_addr = endpoint.host;
    result.master_port = endpoint.port;
  }
  result.restart_count =
      variables.find_number({"TRIREME_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"}, 0, kMostRanks)
          .value_or(0);
  result.start_id = variables.find("TRIREME_START_ID").value_or("");
  if (torchrun && result.start_id.empty()) result.start_id = start_of_torchrun(variables);
  if (!torchrun && store) {
    result.member = variables.find("TRIREME_MEMBER").value_or("");
    result.is_spare = variables.find("TRIREME_SPARE").has_value();
    result.store_file = variables.find("TRIREME_STORE_FILE").value_or("");
    result.most_ranks =
        variables.find_number({"TRIREME_MOST_RANKS"}, 1, kMostRanks).value_or(result.world_size);
  }
  return result;
}

LaunchEnvironment read_open_mpi(const Variables& variables) {
  const std::string because = "OMPI_COMM_WORLD_RANK or OMPI_COMM_WORLD_SIZE says that mpirun started this";
  LaunchEnvironment result;
  result.launcher = "openmpi";
  result.rank = variables.number_of("OMPI_COMM_WORLD_RANK", 0, kMostRanks, because);
  result.world_size = variables.number_of("OMPI_COMM_WORLD_SIZE", 1, kMostRanks, because);
  result.local_rank = variables.number_of("OMPI_COMM_WORLD_LOCAL_RANK", 0, kMostRanks, because);
  result.local_world_size = variables.number_of("OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMostRanks, because);
  check_ranks(result, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  result.one_host = result.local_world_size == result.world_size;
  const auto addr = variables.find("MASTER_ADDR");
  require(addr || result.local_world_size == result.world_size, "mpirun started ", result.world_size,
          " ranks, ", result.local_world_size,
          " of them on this host, but MASTER_ADDR is not set: pass the address of the host of rank 0 to all "
          "ranks, as in 'mpirun -x MASTER_ADDR=10.0.0.1 -x MASTER_PORT=29500 ...'");
  if (addr) result.master_addr = *addr;
  auto job = variables.find("PMIX_NAMESPACE");
  if (!job) job = variables.find("OMPI_MCA_ess_base_jobid");
  result.master_port = variables.find_number({"MASTER_PORT"}, 1, kMostPort)
                           .value_or(job ? port_from(*job) : result.master_port);
  return result;
}

/// Returns "n01" for "n[01-04,7],m3".
std::string first_host(const std::string& node_list) {
  const auto bracket = node_list.find('[');
  const auto comma = node_list.find(',');
  if (bracket == std::string::npos || comma < bracket) return node_list.substr(0, comma);
  const auto end = node_list.find_first_of(",-]", bracket);
  require(end != std::string::npos, "the environment variable SLURM_STEP_NODELIST is '", node_list,
          "'; expected a list of hosts like 'n[01-04,7]'");
  return node_list.substr(0, bracket) + node_list.substr(bracket + 1, end - bracket - 1);
}

/// "2(x3)": 2 tasks on each of 3 nodes.
struct TaskGroup {
  int tasks = 0, nodes = 1;
};

/// The whole text as a positive count of ranks.
std::optional<int> count_in(std::string_view digits) {
  int count = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  const bool sound = error == std::errc() && end == digits.data() + digits.size();
  return sound && count > 0 && count <= kMostRanks ? std::optional(count) : std::nullopt;
}

std::optional<TaskGroup> task_group(std::string_view words) {
  std::string_view nodes = "1";
  if (const std::size_t repeat = words.find("(x"); repeat != std::string_view::npos) {
    if (!words.ends_with(')')) return std::nullopt;
    nodes = words.substr(repeat + 2, words.size() - repeat - 3);
    words = words.substr(0, repeat);
  }
  const auto num_tasks = count_in(words), num_nodes = count_in(nodes);
  if (!num_tasks || !num_nodes) return std::nullopt;
  return TaskGroup{*num_tasks, *num_nodes};
}

/// Tasks on the given node, from "2(x3),1": three nodes with two tasks, then one node with one.
int tasks_on_node(const std::string& tasks_per_node, int node) {
  int first = 0;
  for (const auto& words : split(tasks_per_node, ',')) {
    const auto group = task_group(words);
    require(group.has_value(), "the environment variable SLURM_STEP_TASKS_PER_NODE is '", tasks_per_node,
            "'; expected task counts like '2(x3),1'");
    if (node < first + group->nodes) return group->tasks;
    first += group->nodes;
  }
  throw InvalidArgument(text("the environment variable SLURM_STEP_TASKS_PER_NODE is '", tasks_per_node,
                             "', which has no node ", node, " (SLURM_NODEID)"));
}

LaunchEnvironment read_slurm(const Variables& variables) {
  const std::string because = "SLURM_PROCID or SLURM_NTASKS says that srun started this";
  LaunchEnvironment result;
  result.launcher = "slurm";
  result.rank = variables.number_of("SLURM_PROCID", 0, kMostRanks, because);
  // In the shell of salloc, SLURM_NTASKS is the size of the allocation, while its step has one task.
  const std::string size_name =
      variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  result.world_size = variables.number_of(size_name, 1, kMostRanks, because);
  result.local_rank = variables.number_of("SLURM_LOCALID", 0, kMostRanks, because);
  if (const auto tasks = variables.find("SLURM_STEP_TASKS_PER_NODE")) {
    const int node = variables.find_number({"SLURM_NODEID"}, 0, kMostRanks).value_or(0);
    result.local_world_size = tasks_on_node(*tasks, node);
    result.one_host = result.local_world_size == result.world_size;
  } else {
    result.local_world_size =
        variables.find_number({"SLURM_NTASKS_PER_NODE"}, 1, kMostRanks).value_or(result.world_size);
  }
  check_ranks(result, "SLURM_PROCID", size_name);
  auto addr = variables.find("MASTER_ADDR");
  if (!addr && result.local_world_size < result.world_size) {
    const auto nodes = variables.find("SLURM_STEP_NODELIST");
    addr = nodes ? first_host(*nodes) : variables.find("SLURM_LAUNCH_NODE_IPADDR");
    require(addr.has_value(),
            "srun started ranks on several hosts, but neither SLURM_STEP_NODELIST nor "
            "SLURM_LAUNCH_NODE_IPADDR is set: set MASTER_ADDR to the address of the host of rank 0");
  }
  if (addr) result.master_addr = *addr;
  const auto job = variables.find("SLURM_JOB_ID");
  const std::string step = variables.find("SLURM_STEP_ID").value_or("0");
  result.master_port = variables.find_number({"MASTER_PORT"}, 1, kMostPort)
                           .value_or(job ? port_from(*job + "." + step) : result.master_port);
  result.restart_count = variables.find_number({"SLURM_RESTART_COUNT"}, 0, kMostRanks).value_or(0);
  if (job) result.start_id = "slurm " + *job + "." + step;
  return result;
}

LaunchEnvironment read_without_secret(const Variables& variables) {
  if (variables.has("RANK") || variables.has("WORLD_SIZE")) return read_plain(variables);
  if (variables.has("OMPI_COMM_WORLD_RANK") || variables.has("OMPI_COMM_WORLD_SIZE")) {
    return read_open_mpi(variables);
  }
  // A Slurm batch script has SLURM_NTASKS too, but only srun gives a process a rank.
  if (variables.has("SLURM_PROCID") && variables.has("SLURM_STEP_ID")) return read_slurm(variables);
  return {};
}

}  // namespace

LaunchEnvironment read_launch_environment(const Lookup& lookup) {
  const Variables variables(lookup);
  LaunchEnvironment result = read_without_secret(variables);
  result.parameter_server = variables.find("TRIREME_PS_COORDINATOR").value_or("");
  if (result.world_size > 1 || !result.parameter_server.empty() || !result.member.empty())
    result.secret = wire::Secret::from_variables(lookup);
  return result;
}

LaunchEnvironment read_launch_environment() {
  LaunchEnvironment result =
      read_launch_environment([](const std::string& name) -> std::optional<std::string> {
        const char* value = std::getenv(name.c_str());
        return value ? std::optional<std::string>(value) : std::nullopt;
      });
  if (result.launcher == "torchrun" && result.start_id.empty()) result.start_id = identity_of_parent();
  return result;
}

}  // namespace trireme::comm
