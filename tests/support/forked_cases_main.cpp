// The main function of test programs that load libtorch, which takes a third of a second. It works like that
// of any test program, and also has:
//
//   PROGRAM --suites              prints the names of its suites
//   PROGRAM --cases-of=SUITE [--seconds=60] [--at-once=1]
//
// The second form runs each case of a suite in its own process, which is forked after the loading.
// `--at-once` cases run at the same time. No threads exist at the fork, and cases do not affect each other.
// Prints "case passed|skipped|failed: NAME", preceded by the output of a case that did not pass. A case that
// exceeds its time is killed with all its children. tools/test_summary.py parses this output.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

/// The rest of the first argument that starts with `name`.
std::optional<std::string> argument(const std::vector<std::string>& arguments, std::string_view name) {
  for (const std::string& each : arguments) {
    if (each.rfind(name, 0) == 0) return each.substr(name.size());
  }
  return std::nullopt;
}

std::string content_of(int file) {
  constexpr off_t kMost = 20000;  // of the output of one case; CTest would cut longer output at any place
  const off_t size = lseek(file, 0, SEEK_END);
  std::string content(static_cast<std::size_t>(std::min(size, kMost)), '\0');
  const off_t begin = size - static_cast<off_t>(content.size());
  content.resize(
      static_cast<std::size_t>(std::max<ssize_t>(0, pread(file, content.data(), content.size(), begin))));
  return begin > 0 ? "...\n" + content : content;
}

[[noreturn]] void become(const std::string& name, int output) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setpgid(0, 0);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  testing::GTEST_FLAG(filter) = name;
  const int outcome = RUN_ALL_TESTS();
  std::cout.flush();
  std::fflush(nullptr);
  // Skips the destructors of libtorch's tables, which would copy all memory that both processes share: 0.15
  // s.
  _exit(outcome);
}

/// The reason why a process with this status has failed. Empty if it has not.
std::string failure_of(int status) {
  if (WIFSIGNALED(status)) return std::string("ended by signal ") + strsignal(WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : "exit code " + std::to_string(WEXITSTATUS(status));
}

using Clock = std::chrono::steady_clock;

/// The process of a case.
struct Running {
  std::string name;
  int process = -1;
  int end = -1;     ///< a pidfd, readable after the end; negative on kernels without pidfd_open
  int output = -1;  ///< its output
  Clock::time_point began = Clock::now();
};

Running start(const std::string& name) {
  std::cout.flush();
  Running one{.name = name, .output = memfd_create("output", MFD_CLOEXEC)};
  one.process = fork();
  if (one.process == 0) become(name, one.output);
  one.end = static_cast<int>(syscall(SYS_pidfd_open, one.process, 0));
  return one;
}

/// Reports a case that has ended, or kills one whose time is over. Returns false if it failed.
bool finish(const Running& one, bool in_time, int seconds) {
  int status = 0;
  if (!in_time) kill(-one.process, SIGKILL);
  waitpid(one.process, &status, 0);
  kill(-one.process, SIGKILL);  // remaining children
  const std::string why =
      in_time ? failure_of(status) : "has not ended within " + std::to_string(seconds) + " s";
  const std::string printed = content_of(one.output);
  close(one.output);
  if (one.end >= 0) close(one.end);
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - one.began);
  const bool skipped = why.empty() && printed.find("[  SKIPPED ]") != std::string::npos;
  if (!why.empty() || skipped) std::cout << printed << (why.empty() ? "" : why + "\n");
  std::cout << "case "
            << (!why.empty() ? "failed"
                : skipped    ? "skipped"
                             : "passed")
            << ": " << one.name << " (" << took.count() << " ms)" << std::endl;
  return why.empty();
}

/// Waits until a case has ended or its time is over, and finishes such cases. Returns false if one failed.
bool finish_next(std::vector<Running>& running, int seconds) {
  std::vector<pollfd> ends;
  auto first = Clock::time_point::max();
  for (const Running& one : running) {
    ends.push_back({.fd = one.end, .events = POLLIN, .revents = 0});
    // Without a pidfd there is no timeout.
    first = std::min(first, one.end < 0 ? Clock::now() : one.began + std::chrono::seconds(seconds));
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(first - Clock::now()).count();
  poll(ends.data(), ends.size(), static_cast<int>(std::max<std::int64_t>(left, 0)));
  bool good = true;
  std::vector<Running> still;
  for (std::size_t i = 0; i < running.size(); ++i) {
    const bool ended = running[i].end < 0 || ends[i].revents != 0;
    if (ended || Clock::now() >= running[i].began + std::chrono::seconds(seconds)) {
      good = finish(running[i], ended, seconds) && good;
    } else {
      still.push_back(running[i]);
    }
  }
  running = still;
  return good;
}

int run_cases(const std::string& name, int seconds, std::size_t at_once) {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  bool good = true, found = false;
  std::vector<Running> running;
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    if (suite.name() != name) continue;
    found = true;
    for (int c = 0; c < suite.total_test_count(); ++c) {
      const std::string one = suite.GetTestInfo(c)->name();
      if (one.rfind("DISABLED_", 0) == 0) {
        std::cout << "SKIPPED: disabled in the source\ncase skipped: " << name << "." << one << "\n";
        continue;
      }
      while (running.size() >= at_once) good = finish_next(running, seconds) && good;
      running.push_back(start(name + "." + one));
    }
  }
  while (!running.empty()) good = finish_next(running, seconds) && good;
  if (!found) std::cout << "there is no suite " << name << "\n";
  return good && found ? 0 : 1;
}

int print_suites() {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) std::cout << all.GetTestSuite(s)->name() << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  testing::InitGoogleMock(&argc, argv);
  // A death test starts the program again for one case.
  const bool dies = argument(arguments, "--gtest_internal_run_death_test=").has_value();
  if (const auto suite = argument(arguments, "--cases-of="); suite && !dies)
    return run_cases(*suite, std::stoi(argument(arguments, "--seconds=").value_or("60")),
                     std::max(1ul, std::stoul(argument(arguments, "--at-once=").value_or("1"))));
  if (argument(arguments, "--suites")) return print_suites();
  return RUN_ALL_TESTS();
}
