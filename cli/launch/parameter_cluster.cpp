#include "cli/launch/parameter_cluster.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "cli/launch/exec_words.h"
#include "cli/launch/program_path.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"

extern char** environ;

namespace trireme::cli {
namespace {

constexpr double kStart_s = 20;

std::vector<std::string> environment_with(const std::vector<std::string>& changes) {
  std::vector<std::string> result = changes;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view name(*each, std::strcspn(*each, "="));
    const auto is_it = [&](const std::string& change) { return change.starts_with(std::string(name) + "="); };
    if (std::none_of(changes.begin(), changes.end(), is_it)) result.emplace_back(*each);
  }
  return result;
}

}  // namespace

ParameterCluster::ParameterCluster(ParameterClusterOptions options) : options_(std::move(options)) {
  require(options_.num_servers >= 1, "a parameter server needs at least 1 server, not ",
          options_.num_servers);
  std::filesystem::create_directories(options_.folder);
  start_coordinator();
  const Deadline deadline = Deadline::after_s(kStart_s);
  const std::filesystem::path file = options_.folder / "address";
  while (!std::filesystem::exists(file)) {
    if (!ended().empty() || deadline.expired())
      throw CommError(text("the coordinator of the parameter server did not start in ",
                           options_.folder.string(), "; what it said stands above"));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  address_ = read_file(file);
  address_.erase(address_.find('\n'));
  for (int i = 0; i < options_.num_servers; ++i) start_server(i);
}

ParameterCluster::~ParameterCluster() {
  for (const auto& [number, pid] : children_) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
}

void ParameterCluster::start_coordinator() {
  const std::filesystem::path address_file = options_.folder / "address";
  if (address_.empty()) std::filesystem::remove(address_file);
  start(kCoordinator, {"serve-coordinator", "--folder", (options_.folder / "coordinator").string(),
                       "--servers", text(options_.num_servers), "--replicas", text(options_.num_replicas),
                       "--partitions", text(options_.num_partitions), "--address-file", address_file.string(),
                       "--listen", address_.empty() ? listen_address("coordinator") : address_});
}

std::string ParameterCluster::listen_address(const std::string& name) const {
  if (options_.links == ClusterLinks::kTcp) return "tcp:127.0.0.1:0";
  return text("unix:@", options_.folder.filename().string(), "-", ::getpid(), "-", name);
}

void ParameterCluster::start_server(int number, const std::vector<std::string>& more_options) {
  // As many hosts as servers: here, copies only have to be in different processes.
  std::vector<std::string> words = {"serve-params",
                                    "--coordinator",
                                    address_,
                                    "--name",
                                    text("server", number),
                                    "--host",
                                    text("place", number),
                                    "--listen",
                                    listen_address(text("server", number))};
  words.insert(words.end(), options_.server_options.begin(), options_.server_options.end());
  words.insert(words.end(), more_options.begin(), more_options.end());
  start(number, words);
}

void ParameterCluster::start(int number, const std::vector<std::string>& words) {
  std::vector<std::string> arguments = {find_own_program("trireme")};
  arguments.insert(arguments.end(), words.begin(), words.end());
  std::vector<std::string> variables = environment_with(options_.environment);
  const auto argv = exec_words(arguments), envp = exec_words(variables);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw InternalError(text("no process for ", words.front(), ": ", std::strerror(errno)));
  if (pid == 0) {
    ::setpgid(0, 0);  // Ctrl-C is for the workers, whose last pushes still need the servers
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    ::dup2(null, STDIN_FILENO);
    ::dup2(null, STDOUT_FILENO);
    ::execve(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  children_[number] = pid;
}

void ParameterCluster::send_signal(int number, int signal) {
  const auto found = children_.find(number);
  if (found == children_.end()) return;
  ::kill(found->second, signal);
  if (signal != SIGKILL) return;
  ::waitpid(found->second, nullptr, 0);
  children_.erase(found);
}

std::vector<int> ParameterCluster::ended() {
  std::vector<int> numbers;
  for (auto child = children_.begin(); child != children_.end();) {
    if (::waitpid(child->second, nullptr, WNOHANG) != child->second) {
      ++child;
      continue;
    }
    numbers.push_back(child->first);
    child = children_.erase(child);
  }
  return numbers;
}

std::vector<int> ParameterCluster::servers() const {
  std::vector<int> numbers;
  for (const auto& [number, pid] : children_) {
    if (number != kCoordinator) numbers.push_back(number);
  }
  return numbers;
}

}  // namespace trireme::cli
