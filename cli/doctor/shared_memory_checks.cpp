#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "cli/doctor/finding.h"
#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

Finding check_dev_shm() {
  struct statvfs about {};
  Finding finding{.subject = "/dev/shm", .found = "", .advice = ""};
  if (::statvfs("/dev/shm", &about) != 0) {
    finding.found = "not there; the shm backend does not need it";
    return finding;
  }
  finding.found = text(human_bytes(about.f_bavail * about.f_frsize), " free of ",
                       human_bytes(about.f_blocks * about.f_frsize), "; the shm backend does not need it");
  return finding;
}

Finding check_memfd() {
  const int fd = ::memfd_create("trireme-doctor", MFD_CLOEXEC);
  Finding finding{.subject = "anonymous memory", .found = "memfd_create works", .advice = ""};
  if (fd < 0) {
    finding.state = FindingState::kFails;
    finding.found = text("memfd_create: ", std::strerror(errno));
    finding.advice = "the launcher and the shm backend need it: use another kernel or container runtime";
  } else {
    ::close(fd);
  }
  return finding;
}

/// A child process in another group opens this process's memory, as ranks open each other's.
Finding check_attach() {
  const int fd = ::memfd_create("trireme-doctor", MFD_CLOEXEC);
  const std::string path = text("/proc/", ::getpid(), "/fd/", fd);
  int error = 0;
  const pid_t child = ::fork();
  if (child == 0) {
    const int opened = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    ::_exit(opened >= 0 ? 0 : errno);
  }
  int status = 0;
  if (child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status)) error = WEXITSTATUS(status);
  if (fd >= 0) ::close(fd);
  Finding finding{.subject = "sharing it", .found = "ranks can open each other's memory", .advice = ""};
  if (child < 0 || fd < 0 || error != 0) {
    finding.state = FindingState::kSlow;
    finding.found = text("/proc/PID/fd/N of another process: ", std::strerror(error));
    finding.advice = "the shm backend cannot be used; comm.backend = \"gloo\" works and is slower";
  }
  return finding;
}

Finding check_pidfd() {
  const auto fd = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
  Finding finding{.subject = "process handles", .found = "pidfd_open works", .advice = ""};
  if (fd < 0) {
    finding.state = FindingState::kSlow;
    finding.found = text("pidfd_open: ", std::strerror(errno));
    finding.advice = "a dead rank is noticed later; Linux 5.3 or a newer container runtime has it";
  } else {
    ::close(fd);
  }
  return finding;
}

}  // namespace

Findings check_shared_memory() { return {check_dev_shm(), check_memfd(), check_attach(), check_pidfd()}; }

}  // namespace trireme::cli
