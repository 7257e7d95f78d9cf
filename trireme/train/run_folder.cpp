#include "trireme/train/run_folder.h"

#include <system_error>

#include "trireme/base/error.h"
#include "trireme/base/files.h"

namespace trireme::train {

std::filesystem::path start_fresh(const RunFolder& folder) {
  std::filesystem::path moved;
  std::error_code error;
  if (std::filesystem::exists(folder.root, error)) {
    for (int number = 1; moved.empty() || std::filesystem::exists(moved); ++number) {
      moved = text(folder.root.string(), ".", number);
    }
    std::filesystem::rename(folder.root, moved, error);
    if (error) {
      throw DataError(text("cannot rename ", folder.root.string(), " of an earlier run to ", moved.string(),
                           ": ", error.message()));
    }
  }
  make_folder(folder.root);
  return moved;
}

}  // namespace trireme::train
