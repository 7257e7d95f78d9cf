#include "cli/launch/launcher.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>

#include "cli/launch/program_path.h"
#include "cli/launch/supervisor.h"
#include "trireme/base/error.h"
#include "trireme/base/host.h"

extern char** environ;

namespace trireme::cli {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

void check(const LaunchOptions& options) {
  require(!options.command.empty(),
          "there is no program to launch: trireme launch -n N -- PROGRAM ARGUMENTS");
  require(options.num_ranks >= 1, "-n is ", options.num_ranks, "; at least 1 rank is needed");
  require(options.num_nodes >= 1, "--nnodes is ", options.num_nodes, "; at least 1 host is needed");
  require(options.node_rank >= 0 && options.node_rank < options.num_nodes, "--node-rank is ",
          options.node_rank, "; with --nnodes ", options.num_nodes, " it goes from 0 to ",
          options.num_nodes - 1);
  require(options.master_port >= 0 && options.master_port <= 65535, "--master-port is ", options.master_port,
          "; ports go from 1 to 65535");
  require(options.max_restarts >= 0, "--max-restarts is ", options.max_restarts, "; 0 means none");
  require(options.num_nodes == 1 || (!options.master_addr.empty() && options.master_port != 0),
          "with --nnodes ", options.num_nodes,
          " all hosts have to know the same address: give --master-addr (a name or address of the host with "
          "--node-rank 0) and --master-port (a free port there)");
}

/// A socket on a free port, which rank 0 serves the rendezvous on. Bound before any rank is started, so that
/// no other program is given the port in between. It does not listen, so that a program that serves the port
/// itself (with SO_REUSEADDR, as torch's store does) can bind it once more.
class MasterSocket {
 public:
  explicit MasterSocket(const std::string& addr) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int unknown = ::getaddrinfo(addr.c_str(), "0", &hints, &found);
    require(unknown == 0, "--master-addr ", addr, " is not a known host: ", ::gai_strerror(unknown));
    fd_ = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    const bool bound = fd_ >= 0 && ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                       ::bind(fd_, found->ai_addr, found->ai_addrlen) == 0;
    const int error = errno;
    ::freeaddrinfo(found);
    if (!bound) {
      throw CommError(text("cannot take a free port of ", addr, ": ", std::strerror(error)));
    }
  }
  ~MasterSocket() { ::close(fd_); }
  MasterSocket(const MasterSocket&) = delete;
  MasterSocket& operator=(const MasterSocket&) = delete;

  int fd() const { return fd_; }
  int port() const {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
    // The port stands at the same place in an IPv4 and an IPv6 address.
    return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
  }

 private:
  int fd_ = -1;
};

/// This process's environment with some variables set, and without those of other launchers that would say
/// something else.
std::vector<std::string> environment_with(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view line = *entry;
    const std::string name(line.substr(0, line.find('=')));
    const bool foreign = name.starts_with("TORCHELASTIC_") || name == "TRIREME_MASTER_FD" ||
                         name == "TRIREME_STATUS_FD" || name == "GROUP_RANK";
    if (!foreign && !changes.contains(name)) result.emplace_back(line);
  }
  for (const auto& [name, value] : changes) result.push_back(name + "=" + value);
  return result;
}

struct WorldStart {
  const MasterSocket* socket;  ///< null when the ranks are given a port
  const std::string& start_id;
  int restart;
  const Screen* screen;
};

RankStart plan_rank(const LaunchOptions& options, const std::string& program, int local_rank,
                    const WorldStart& world) {
  const auto& [socket, start_id, restart, screen] = world;
  const int rank = options.node_rank * options.num_ranks + local_rank;
  const std::string addr = options.master_addr.empty() ? kLoopback : options.master_addr;
  std::map<std::string, std::string> variables = {
      {"RANK", text(rank)},
      {"WORLD_SIZE", text(options.num_nodes * options.num_ranks)},
      {"LOCAL_RANK", text(local_rank)},
      {"LOCAL_WORLD_SIZE", text(options.num_ranks)},
      {"MASTER_ADDR", addr},
      {"MASTER_PORT", text(socket != nullptr ? socket->port() : options.master_port)},
      {"TRIREME_RESTART_COUNT", text(restart)},
      {"TRIREME_START_ID", start_id},
  };
  if (::getenv("OMP_NUM_THREADS") == nullptr) {
    variables["OMP_NUM_THREADS"] = text(std::max(1, available_cores() / options.num_ranks));
  }
  if (screen->shows_bars() && rank == 0) variables["TRIREME_TERMINAL"] = text(screen->bar_columns());
  const bool hands_socket = socket != nullptr && rank == 0;
  if (hands_socket) variables["TRIREME_MASTER_FD"] = text(socket->fd());
  return {.rank = rank,
          .program = program,
          .arguments = options.command,
          .environment = environment_with(variables),
          .master_fd = hands_socket ? socket->fd() : -1,
          .inherits_stdin = rank == 0 && ::isatty(STDIN_FILENO) == 0};
}

/// The first start of a world, or one of its restarts.
struct Attempt {
  std::string start_id;
  int restart = 0;
};

/// Another one for every start, on whatever host.
std::string new_start_id() {
  std::random_device random;
  std::array<char, 24> id{};
  std::snprintf(id.data(), id.size(), "%08x%08x", random(), random());
  return id.data();
}

WorldStory run_world(const LaunchOptions& options, const std::string& program, Screen& screen,
                     SignalQueue& signals, const Attempt& attempt) {
  std::unique_ptr<MasterSocket> socket;
  if (options.master_port == 0) {
    socket = std::make_unique<MasterSocket>(options.master_addr.empty() ? kLoopback : options.master_addr);
  }
  std::vector<RankStart> starts;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    starts.push_back(
        plan_rank(options, program, rank, {socket.get(), attempt.start_id, attempt.restart, &screen}));
  }
  Supervisor supervisor(options, screen, signals);
  supervisor.start(starts);
  socket.reset();  // rank 0 has it; when that dies, nobody shall be able to connect
  return supervisor.run();
}

/// Nothing will be different the next time.
bool is_final(int exit_code) { return exit_code == kExitUsage || exit_code == kExitDiverged; }

}  // namespace

int launch(const LaunchOptions& options) {
  check(options);
  const std::string program = find_program(options.command.front());
  Screen screen;
  const int cores = available_cores();
  if (options.num_ranks > cores) {
    screen.note(
        text("note: ", options.num_ranks, " ranks on ", cores, " core(s) take turns; expect no gain"));
  }
  SignalQueue signals;
  const std::string start_id = new_start_id();
  for (int restart = 0;; ++restart) {
    const auto world = run_world(options, program, screen, signals, {start_id, restart});
    for (const auto& line : report(world)) screen.note(line);
    const int code = exit_code_of(world);
    if (code == kExitOk || world.told_to_stop != 0 || is_final(code) || restart >= options.max_restarts) {
      return code;
    }
    screen.note(text("starting all ", options.num_ranks, " rank(s) again, restart ", restart + 1, " of ",
                     options.max_restarts));
  }
}

}  // namespace trireme::cli
