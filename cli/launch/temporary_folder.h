#pragma once
// A folder among the system's temporary ones, removed with all that is in it at the end.

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include "trireme/base/error.h"

namespace trireme::cli {

class TemporaryFolder {
 public:
  TemporaryFolder() : path_((std::filesystem::temp_directory_path() / "trireme-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr)
      throw DataError(text("no folder ", path_, ": ", std::strerror(errno)));
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace trireme::cli
