#include "cli/launch/evidence_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "trireme/autopsy/evidence_file.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/telemetry/run_end.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;

// Time for which a write may delay the launcher, and its end.
constexpr double kPatience_s = 0.5, kLastPatience_s = 5;

/// A run folder may belong to an earlier run, if a rank failed before it made the folder of this one.
bool belongs_to_start(const fs::path& folder, const std::string& start_id) {
  const std::string start = telemetry::start_of_run(folder);
  return start.empty() || start == start_id;
}

/// Closes all files of the launcher except `error`, so its output and its ports end with it.
void let_go_of_the_launcher(int error) {
  constexpr int kKept = 3;
  ::setpgid(0, 0);  // Ctrl-C is for the launcher only
  ::prctl(PR_SET_NAME, "trireme-autopsy");
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (error != kKept) ::dup2(error, kKept);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int standard = 0; standard < kKept; ++standard) ::dup2(null, standard);
  ::close_range(kKept + 1, ~0U, 0);
}

/// `earlier`: the killed process of an earlier write; its partial file is removed.
std::string write_to_disk(const fs::path& file, const std::string& start_id, const std::string& json,
                          int earlier) {
  std::error_code ignored;
  if (!fs::is_directory(file.parent_path(), ignored)) return {};
  try {
    if (!belongs_to_start(file.parent_path(), start_id)) return {};
    if (earlier != 0) fs::remove(text(file.string(), ".part", earlier), ignored);
    write_file_atomic(file, json);
  } catch (const std::exception& error) {
    return text("the evidence of this failure is not saved: ", error.what());
  }
  return {};
}

}  // namespace

void EvidenceWriter::drop_earlier() {
  if (pid_ == 0) return;
  wait_for_it(0);
  if (pid_ != 0) ::kill(pid_, SIGKILL);  // a process that the disk blocks must end before it renames its file
  error_.close();
  message_.clear();
}

void EvidenceWriter::write(const autopsy::Evidence& evidence) {
  drop_earlier();
  const std::string json = autopsy::encode(evidence);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return options_.complain("no pipe for the evidence of a failure");
  error_ = FileDescriptor(ends[0]);
  FileDescriptor error(ends[1]);
  const int earlier = std::exchange(pid_, 0);
  const pid_t pid = ::fork();
  if (pid < 0) {
    options_.complain(text("no process to write the evidence of a failure: ", std::strerror(errno)));
    return;
  }
  if (pid == 0) {
    let_go_of_the_launcher(error.get());
    const std::string message = write_to_disk(options_.file, options_.start_id, json, earlier);
    FileDescriptor(3).write(message);
    ::_exit(0);
  }
  pid_ = pid;
  error.close();
  wait_for_it(kPatience_s);
}

void EvidenceWriter::finish() {
  if (pid_ != 0) wait_for_it(kLastPatience_s);
}

void EvidenceWriter::wait_for_it(double patience_s) {
  const auto deadline = Deadline::after_s(patience_s);
  for (bool closed = false;;) {
    pollfd polled{closed ? -1 : error_.get(), POLLIN, 0};
    const double wait_s = closed ? 0 : deadline.remaining_s();
    ::poll(&polled, 1, static_cast<int>(whole_milliseconds(wait_s).count()));
    std::array<char, 4096> part{};
    const ssize_t got = polled.revents != 0 ? ::read(error_.get(), part.data(), part.size()) : -1;
    if (got > 0) message_.append(part.data(), static_cast<std::size_t>(got));
    closed = closed || got == 0;
    if (closed && ::waitpid(pid_, nullptr, WNOHANG) != 0) break;
    if (deadline.expired()) return;
  }
  pid_ = 0;
  if (!message_.empty()) options_.complain(std::exchange(message_, {}));
}

}  // namespace trireme::cli
