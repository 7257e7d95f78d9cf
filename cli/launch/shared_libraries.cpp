#include "cli/launch/shared_libraries.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "cli/launch/program_output.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

/// Libraries of a torch package, or installed with it.
bool belongs_to_torch(const std::string& library) {
  constexpr std::array kNames = {"libtorch", "libc10", "libgomp", "libcudart", "libcupti"};
  return std::any_of(kNames.begin(), kNames.end(),
                     [&](const char* name) { return library.starts_with(name); });
}

}  // namespace

std::vector<std::string> missing_libraries(const std::string& program) {
  std::vector<std::string> missing;
  for (const auto& line : split(output_of({program}, {"LD_TRACE_LOADED_OBJECTS=1"}), '\n')) {
    const auto arrow = line.find(" => not found");
    if (arrow != std::string::npos) missing.emplace_back(trim(line.substr(0, arrow)));
  }
  return missing;
}

std::string advice_for_missing(const std::vector<std::string>& libraries, const std::string& program) {
  namespace fs = std::filesystem;
  const fs::path place = fs::path(program).parent_path().parent_path() / "lib/trireme";
  std::error_code error;
  if (!fs::is_directory(place, error)) return "set up and build again: make build";
  if (std::any_of(libraries.begin(), libraries.end(), belongs_to_torch)) {
    return text(
        "libtorch is not where it was when trireme was installed: link the folder of the torch package ",
        "(it holds include/ and lib/): ln -s FOLDER ", (place / "torch").string(),
        "; or install trireme with its libraries: make install PREFIX=... BUNDLE=1");
  }
  return "install the packages that hold them, or trireme with its libraries: make install PREFIX=... "
         "BUNDLE=1";
}

void require_libraries(const std::string& program) {
  const auto missing = missing_libraries(program);
  require(missing.empty(), program, " cannot start: not found: ", join(missing), "; ",
          advice_for_missing(missing, program));
}

}  // namespace trireme::cli
