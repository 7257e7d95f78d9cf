#include "cli/launch/rank_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "cli/launch/exec_words.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"

namespace trireme::cli {
namespace {

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw InternalError(text("no pipe for a rank: ", std::strerror(errno),
                             "; the limit of open files may be too low (ulimit -n)"));
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

/// Everything that the child needs between fork and exec, where it must not allocate.
struct ChildPlan {
  const char* program;
  char* const* argv;
  char* const* envp;
  pid_t launcher;
  int in, out, err;
  int status_fd;
  int failure;  ///< receives the errno of a failed exec; closed by a successful one
};

[[noreturn]] void become(const ChildPlan& plan) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.launcher) ::_exit(127);  // the launcher ended before PR_SET_PDEATHSIG was set
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  if (plan.in >= 0) ::dup2(plan.in, STDIN_FILENO);
  ::dup2(plan.out, STDOUT_FILENO);
  ::dup2(plan.err, STDERR_FILENO);
  ::fcntl(plan.status_fd, F_SETFD, 0);  // stays open
  ::execve(plan.program, plan.argv, plan.envp);
  const int error = errno;
  [[maybe_unused]] const auto written = ::write(plan.failure, &error, sizeof error);
  ::_exit(127);
}

/// The errno of a failed exec; 0: the program has begun, or the result is not known yet. A stopped process,
/// or a disk that does not answer, must not keep the launcher from the other ranks.
int failure_of_exec(pid_t pid, int failure) {
  constexpr auto kSlice = std::chrono::milliseconds(10);
  const auto deadline = Deadline::after_s(10);
  pollfd polled{failure, POLLIN, 0};
  while (!deadline.expired() && ::poll(&polled, 1, static_cast<int>(kSlice.count())) <= 0) {
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0)
      return 0;
  }
  int error = 0;
  return polled.revents != 0 && ::read(failure, &error, sizeof error) == sizeof error ? error : 0;
}

}  // namespace

RankProcess::RankProcess(const RankStart& start) : rank_(start.rank), member_(start.member) {
  int status_fd = -1;
  page_ = telemetry::StatusPage::create(&status_fd);
  page_->set_rank(rank_);
  const FileDescriptor status(status_fd);
  auto arguments = start.arguments;
  auto variables = start.environment;
  variables.push_back(text("TRIREME_STATUS_FD=", status_fd));
  const auto argv = exec_words(arguments);
  const auto envp = exec_words(variables);
  const FileDescriptor null(start.inherits_stdin ? -1 : ::open("/dev/null", O_RDONLY | O_CLOEXEC));
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  Pipe failure = make_pipe();
  const ChildPlan plan{start.program.c_str(), argv.data(),     envp.data(), ::getpid(),         null.get(),
                       out.write.get(),       err.write.get(), status_fd,   failure.write.get()};
  pid_ = ::fork();
  if (pid_ == 0) become(plan);
  if (pid_ < 0) {
    throw InternalError(text("no process for ", is_spare() ? text("a spare") : text("rank ", rank_), ": ",
                             std::strerror(errno), "; the limit of processes may be too low (ulimit -u)"));
  }
  ::setpgid(pid_, pid_);  // also here, as a signal may be sent before the child calls setpgid
  failure.write.close();
  if (const int error = failure_of_exec(pid_, failure.read.get()); error != 0) {
    ::waitpid(pid_, nullptr, 0);
    throw InvalidArgument(text("cannot execute ", start.program, ": ", std::strerror(error),
                               error == ENOEXEC ? "; a script needs a first line like #!/bin/sh" : ""));
  }
  out_ = std::move(out.read);
  err_ = std::move(err.read);
  ::fcntl(out_fd(), F_SETFL, O_NONBLOCK);
  ::fcntl(err_fd(), F_SETFL, O_NONBLOCK);
}

RankProcess::~RankProcess() {
  if (!ended_) {
    send_signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
}

void RankProcess::set_rank(int rank) {
  rank_ = rank;
  page_->set_rank(rank);
}

void RankProcess::send_signal(int signal) const {
  if (!ended_) ::kill(-pid_, signal);
}

RankProcess::Change RankProcess::look() {
  siginfo_t info{};
  constexpr int kWhat = WEXITED | WSTOPPED | WCONTINUED | WNOHANG;
  if (ended_ || ::waitid(P_PID, static_cast<id_t>(pid_), &info, kWhat | WNOWAIT) != 0 || info.si_pid == 0) {
    return Change::kNone;
  }
  // Until the rank is reaped, its process group's id cannot be reused.
  if (info.si_code != CLD_STOPPED && info.si_code != CLD_CONTINUED) send_signal(SIGKILL);
  ::waitpid(pid_, &wait_status_, WUNTRACED | WCONTINUED);
  if (WIFSTOPPED(wait_status_)) {
    stopped_by_ = WSTOPSIG(wait_status_);
    return Change::kStopped;
  }
  if (WIFCONTINUED(wait_status_)) {
    stopped_by_ = 0;
    return Change::kContinued;
  }
  ended_ = true;
  ended_s_ = now_s();
  return Change::kEnded;
}

}  // namespace trireme::cli
