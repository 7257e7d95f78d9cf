#include "cli/launch/program_path.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "trireme/base/error.h"

namespace trireme::cli {
namespace fs = std::filesystem;
namespace {

bool is_program(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

std::string advice_for_script(const std::string& name) {
  return name.ends_with(".py") ? text(", or start it with: python3 ", name) : "";
}

void check_given_path(const std::string& name) {
  std::error_code error;
  const auto status = fs::status(name, error);
  require(fs::exists(status), "there is no program ", name);
  require(!fs::is_directory(status), name, " is a folder, not a program");
  require(is_program(name), name, " is not executable: make it so with: chmod +x ", name,
          advice_for_script(name));
}

}  // namespace

std::string find_program(const std::string& name) {
  require(!name.empty(), "the name of the program is empty");
  if (name.find('/') != std::string::npos) {
    check_given_path(name);
    return name;
  }
  const char* variable = std::getenv("PATH");
  const std::string path = variable != nullptr ? variable : "/usr/local/bin:/usr/bin:/bin";
  for (const auto& folder : split(path, ':')) {
    const fs::path candidate = fs::path(folder.empty() ? "." : folder) / name;
    if (is_program(candidate)) return candidate.string();
  }
  std::error_code error;
  const std::string here = fs::exists(name, error) ? text(" (did you mean ./", name, "?)") : "";
  throw InvalidArgument(text("there is no program '", name, "' in PATH", here, "; looked in ", path));
}

std::string own_path() {
  std::error_code error;
  const std::string path = fs::read_symlink("/proc/self/exe", error).string();
  require(!error && is_program(path),
          "the file of this program is gone, so no ranks of it can be started: ", path, "; start it again");
  return path;
}

std::string find_own_program(const std::string& name) {
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  const fs::path beside = folder / name;
  const fs::path in_libexec = folder.parent_path() / "libexec" / "trireme" / name;
  for (const auto& candidate : {beside, in_libexec}) {
    if (is_program(candidate)) return candidate.string();
  }
  throw InvalidArgument(text("the program ", name, " is not there: looked for ", beside.string(), " and ",
                             in_libexec.string(), "; build it in a checkout (tools/build.sh release ", name,
                             "), or install trireme again from one: make install PREFIX=..."));
}

}  // namespace trireme::cli
