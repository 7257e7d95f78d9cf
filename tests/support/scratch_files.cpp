#include "tests/support/scratch_files.h"

#include <sys/resource.h>

#include <csignal>
#include <string>
#include <system_error>

namespace trireme::test {

std::vector<std::filesystem::path> scratch_files_of(pid_t process) {
  std::vector<std::filesystem::path> found;
  const std::filesystem::path folder = "/proc/" + std::to_string(process) + "/fd";
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (target.find("trireme-scratch-") != std::string::npos) found.push_back(entry.path());
  }
  return found;
}

FileSizeLimit::FileSizeLimit(std::uint64_t bytes) : handler_before_(std::signal(SIGXFSZ, SIG_IGN)) {
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  before_ = limit.rlim_cur;
  limit.rlim_cur = bytes;
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

FileSizeLimit::~FileSizeLimit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = before_;
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, handler_before_);
}

}  // namespace trireme::test
