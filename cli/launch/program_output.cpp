#include "cli/launch/program_output.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "trireme/base/clock.h"

namespace trireme::cli {
namespace {

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

/// The words, then the entries of `more`, then the terminating null pointer. Of two variables of one name the
/// first one counts.
std::vector<char*> pointers_to(std::vector<std::string>& words, char** more) {
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  for (; more != nullptr && *more != nullptr; ++more) pointers.push_back(*more);
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

std::string output_of(const std::vector<std::string>& command, const std::vector<std::string>& environment) {
  constexpr double kTimeout_s = 20;
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return "";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  auto words = command, added = environment;
  const auto argv = pointers_to(words, nullptr), envp = pointers_to(added, environ);
  pid_t pid = -1;
  const int failed = ::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), envp.data());
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

}  // namespace trireme::cli
