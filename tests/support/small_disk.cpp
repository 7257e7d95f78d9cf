#include "tests/support/small_disk.h"

#include "tests/support/child_process.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/text.h"

namespace trireme::test {

std::string small_disk_unavailable_because() {
  const TemporaryFolder folder;
  const ChildResult result = run(on_small_disk({.size = "64k", .folder = folder.path()}, {"true"}), {}, 20);
  return result.exit_code == 0 ? "" : text("no file system can be mounted here: ", result.err);
}

std::vector<std::string> on_small_disk(const SmallDisk& disk, const std::vector<std::string>& command) {
  const char* script =
      R"(mount -t tmpfs -o "size=$1" none "$2" || exit 1
         folder=$2 keep=$3
         shift 3
         "$@"
         code=$?
         [ -z "$keep" ] || cp -a "$folder/." "$keep"
         exit $code)";
  std::vector<std::string> words = {
      "unshare",         "--mount", "bash", "-c", script, "bash", disk.size, disk.folder.string(),
      disk.keep.string()};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

}  // namespace trireme::test
