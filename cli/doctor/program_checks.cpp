#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/doctor/finding.h"
#include "cli/launch/program_path.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"

extern char** environ;

namespace trireme::cli {
namespace fs = std::filesystem;
namespace {

std::string first_line_of(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string version_of(const std::string& program, const std::string& option) {
  try {
    return first_line_of(output_of({find_program(program), option}));
  } catch (const InvalidArgument&) {
    return "";
  }
}

int count_nvidia_devices() {
  int count = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/dev", error)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("nvidia") && name.size() > 6 && std::isdigit(static_cast<unsigned char>(name[6])))
      ++count;
  }
  return count;
}

/// Reads until the end or the deadline; false at the deadline.
bool read_all(int fd, const Deadline& deadline, std::string& out) {
  std::array<char, 4096> buffer;
  for (;;) {
    pollfd polled{fd, POLLIN, 0};
    if (::poll(&polled, 1, static_cast<int>(deadline.remaining_s() * 1000)) <= 0) return false;
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got <= 0) return true;
    out.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace

std::string output_of(const std::vector<std::string>& command) {
  constexpr double kTimeout_s = 20;
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return "";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  auto words = command;
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int failed = ::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string out;
  int status = -1;
  if (failed == 0) {
    if (!read_all(ends[0], Deadline::after_s(kTimeout_s), out)) ::kill(pid, SIGKILL);
    ::waitpid(pid, &status, 0);
  }
  ::close(ends[0]);
  return status == 0 ? out : "";
}

Findings check_devices() {
  const int devices = count_nvidia_devices();
  if (devices == 0)
    return {{.subject = "GPUs",
             .state = FindingState::kAbsent,
             .found = "none (no /dev/nvidia0); training on the CPU",
             .advice = ""}};
  const bool works = !version_of("nvidia-smi", "-L").empty();
  if (works) return {{.subject = "GPUs", .found = text(devices, " (nvidia-smi works)"), .advice = ""}};
  return {
      {.subject = "GPUs",
       .state = FindingState::kSlow,
       .found = text(devices, " device(s), but nvidia-smi does not work"),
       .advice = "the driver is not usable from here: start the container with GPUs, or update the driver"}};
}

Findings check_versions() {
  utsname system{};
  ::uname(&system);
  Findings findings = {
      {.subject = "trireme", .found = text(TRIREME_VERSION, ", built by g++ ", __VERSION__), .advice = ""},
      {.subject = "kernel", .found = text(system.sysname, " ", system.release), .advice = ""}};
  const std::string mpirun = version_of("mpirun", "--version");
  const std::string srun = version_of("srun", "--version");
  std::string launchers = "trireme launch";
  for (const auto& other : {mpirun, srun}) launchers += other.empty() ? "" : ", " + other;
  findings.push_back({.subject = "launchers", .found = launchers, .advice = ""});
  return findings;
}

Findings check_backends() {
  std::string program;
  try {
    program = find_own_program("trireme-torch");
  } catch (const InvalidArgument& error) {
    return {{.subject = "libtorch",
             .state = FindingState::kFails,
             .found = error.what(),
             .advice = "run: make build"}};
  }
  const std::string version = first_line_of(output_of({program, "--version"}));
  const auto rows = nlohmann::json::parse(output_of({program, "backends", "--json"}), nullptr, false);
  if (version.empty() || !rows.is_array()) {
    return {{.subject = "libtorch",
             .state = FindingState::kFails,
             .found = text(program, " does not start"),
             .advice = text("see why with: ", program, " --version; make setup fetches libtorch again")}};
  }
  Findings findings = {{.subject = "libtorch", .found = version, .advice = ""}};
  for (const auto& row : rows) {
    const std::string reason = row.value("unavailable_because", "");
    findings.push_back({.subject = "backend " + row.value("name", ""),
                        .state = reason.empty() ? FindingState::kOk : FindingState::kAbsent,
                        .found = reason.empty() ? row.value("summary", "") : "cannot be used here",
                        .advice = reason});
  }
  return findings;
}

}  // namespace trireme::cli
