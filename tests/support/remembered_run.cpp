#include "tests/support/remembered_run.h"

#include <unistd.h>

#include <filesystem>
#include <stdexcept>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "trireme/base/files.h"
#include "trireme/base/random.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

/// Size and time of a file. Empty if the path is no file.
std::string version_of(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return {};
  return text(' ', fs::file_size(path), ' ', fs::last_write_time(path).time_since_epoch().count());
}

/// The words. A word or setting value that is a file is followed by the version of the file.
std::string key_of(const std::vector<std::string>& command) {
  std::string key;
  for (const std::string& word : command)
    key += text(word, version_of(word.substr(word.find('=') + 1)), '\n');
  return key;
}

std::string name_of(const std::string& key) { return text(Random::key_of(key)); }

void forget_other_programs(const fs::path& folder, const std::string& kept) {
  std::error_code ignored;  // another test may remove the same folder
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().filename() != kept) fs::remove_all(entry.path(), ignored);
  }
}

}  // namespace

TrainedRun remembered_run(const std::vector<std::string>& command, double timeout_s) {
  const std::string key = key_of(command);
  const fs::path all = fs::path(build_folder()) / "tests" / "trained";
  const std::string program = name_of(key_of({command.front()}));
  const fs::path place = all / program / name_of(key);
  if (!fs::exists(place)) {
    fs::create_directories(place.parent_path());
    forget_other_programs(all, program);
    const std::string own = text(place.filename().string(), ".of-", ::getpid());
    const fs::path trained = place.parent_path() / own;
    fs::remove_all(trained);  // left by a killed process with the same id
    std::vector<std::string> words = command;
    for (const std::string& setting : {"run.folder=" + place.parent_path().string(), "run.name=" + own})
      words.insert(words.end(), {"--set", setting});
    const ChildResult result = run(words, {}, timeout_s);
    if (result.exit_code != 0) throw std::runtime_error(text(join(words, " "), "\n", result.out, result.err));
    write_file_atomic(trained / "remembered_as", key);
    std::error_code is_there;  // another test was faster
    fs::rename(trained, place, is_there);
    if (is_there) fs::remove_all(trained);
  }
  if (read_file(place / "remembered_as") != key)
    throw std::runtime_error(text(place.string(), " is the run of another command: remove it"));
  return read_run(place);
}

}  // namespace trireme::test
