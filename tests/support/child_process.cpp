#include "tests/support/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "trireme/base/clock.h"
#include "trireme/base/text.h"

extern char** environ;

namespace trireme::test {
namespace {

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    read = ends[0];
    write = ends[1];
  }
  int read;
  int write;
};

std::vector<std::string> merged_environment(std::map<std::string, std::string> changes) {
#ifdef __SANITIZE_ADDRESS__  // a library that a test preloads precedes the sanitizer's own
  const char* given = std::getenv("ASAN_OPTIONS");
  changes.try_emplace("ASAN_OPTIONS", text(given == nullptr ? "" : given, ":verify_asan_link_order=0"));
#endif
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view line = *entry;
    if (!changes.contains(std::string(line.substr(0, line.find('='))))) result.emplace_back(line);
  }
  for (const auto& [name, value] : changes) {
    if (!value.empty()) result.push_back(name + "=" + value);
  }
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> result;
  for (auto& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

/// Collects both streams. All reads happen in the calling thread, inside poll().
struct ChildProcess::Reader {
  std::array<int, 2> fds{-1, -1};
  std::array<std::string, 2> texts;
  bool ended = false;
  int status = 0;

  ~Reader() {
    for (const int fd : fds) {
      if (fd >= 0) ::close(fd);
    }
  }

  /// Reads the available output, and waits for at most `timeout_s`. Returns false when both streams have
  /// ended.
  bool read_some(double timeout_s) {
    std::array<pollfd, 2> polled{pollfd{fds[0], POLLIN, 0}, pollfd{fds[1], POLLIN, 0}};
    if (fds[0] < 0 && fds[1] < 0) return false;
    ::poll(polled.data(), 2, static_cast<int>(timeout_s * 1000));
    for (std::size_t i = 0; i < 2; ++i) {
      if (polled[i].revents != 0) read_stream(i);
    }
    return true;
  }

 private:
  void read_stream(std::size_t i) {
    std::array<char, 1 << 16> buffer;
    const ssize_t got = ::read(fds[i], buffer.data(), buffer.size());
    if (got > 0) {
      texts[i].append(buffer.data(), static_cast<std::size_t>(got));
    } else if (got == 0 || errno != EINTR) {
      ::close(fds[i]);
      fds[i] = -1;
    }
  }
};

ChildProcess::ChildProcess(const std::vector<std::string>& command,
                           const std::map<std::string, std::string>& environment,
                           const std::string& working_folder)
    : started_s_(now_s()), reader_(std::make_unique<Reader>()) {
  auto words = command;
  auto variables = merged_environment(environment);
  const auto argv = pointers(words);
  const auto envp = pointers(variables);
  const Pipe out;
  const Pipe err;
  pid_ = ::fork();
  if (pid_ == 0) {
    ::setpgid(0, 0);
    // A shell that runs the tests in the background ignores these signals, and children inherit that.
    for (const int signal : {SIGINT, SIGQUIT}) ::signal(signal, SIG_DFL);
    const int null = ::open("/dev/null", O_RDONLY);
    ::dup2(null, STDIN_FILENO);
    ::dup2(out.write, STDOUT_FILENO);
    ::dup2(err.write, STDERR_FILENO);
    if (working_folder.empty() || ::chdir(working_folder.c_str()) == 0) {
      ::execvpe(argv[0], argv.data(), envp.data());
    }
    const char* reason = std::strerror(errno);
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, reason, std::strlen(reason));
    ::_exit(127);
  }
  ::close(out.write);
  ::close(err.write);
  reader_->fds = {out.read, err.read};
  if (pid_ < 0) throw std::runtime_error("no process");
  ::setpgid(pid_, pid_);  // also in the parent: a signal may be sent before the child has called it
}

ChildProcess::~ChildProcess() {
  ::kill(-pid_, SIGKILL);
  if (!reader_->ended) ::waitpid(pid_, nullptr, 0);
}

std::vector<int> ChildProcess::children() const {
  std::vector<int> result;
  std::ifstream file(text("/proc/", pid_, "/task/", pid_, "/children"));
  for (int child = 0; file >> child;) result.push_back(child);
  return result;
}

const std::string& ChildProcess::output() const { return reader_->texts[0]; }

bool ChildProcess::wait_for_output(const std::string& wanted, double timeout_s) {
  const auto deadline = Deadline::after_s(timeout_s);
  for (;;) {
    for (const auto& text : reader_->texts) {
      if (text.find(wanted) != std::string::npos) return true;
    }
    if (deadline.expired() || !reader_->read_some(deadline.remaining_s())) return false;
  }
}

ChildResult ChildProcess::wait(double timeout_s) {
  const auto deadline = Deadline::after_s(timeout_s);
  constexpr double kLookAgain_s = 0.02;
  while (!reader_->ended && !deadline.expired()) {
    if (::waitpid(pid_, &reader_->status, WNOHANG) == pid_) {
      reader_->ended = true;
    } else if (!reader_->read_some(kLookAgain_s)) {
      ::usleep(static_cast<useconds_t>(kLookAgain_s * 1e6));
    }
  }
  ChildResult result;
  result.timed_out = !reader_->ended;
  if (result.timed_out) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, &reader_->status, 0);
    reader_->ended = true;
  }
  // Descendants may hold the pipes open. Output after the end of the child is not waited for.
  while (reader_->read_some(0) && (reader_->fds[0] >= 0 || reader_->fds[1] >= 0)) {
    std::array<pollfd, 2> polled{pollfd{reader_->fds[0], POLLIN, 0}, pollfd{reader_->fds[1], POLLIN, 0}};
    if (::poll(polled.data(), 2, 0) <= 0) break;
  }
  if (!result.timed_out && WIFEXITED(reader_->status)) result.exit_code = WEXITSTATUS(reader_->status);
  if (WIFSIGNALED(reader_->status)) result.signal = WTERMSIG(reader_->status);
  result.out = reader_->texts[0];
  result.err = reader_->texts[1];
  result.wall_s = now_s() - started_s_;
  return result;
}

void ChildProcess::send_signal(int signal) {
  ::kill(pid_, signal);
  siginfo_t stopped{};
  if (signal == SIGSTOP) ::waitid(P_PID, static_cast<id_t>(pid_), &stopped, WSTOPPED | WEXITED | WNOWAIT);
}

ChildResult run(const std::vector<std::string>& command,
                const std::map<std::string, std::string>& environment, double timeout_s) {
  return ChildProcess(command, environment).wait(timeout_s);
}

}  // namespace trireme::test
