#pragma once
// Files of a folder without readers before it is complete: each is written and synced, the folder once after
// all of them. Thread-safe as long as two callers do not write the same path.

#include <filesystem>
#include <functional>

#include "trireme/base/files.h"

namespace trireme {

/// Writes and syncs `path` through `fill`. On any error no file is left. Throws DataError (disk full, not
/// writable) or the exceptions of `fill`.
void write_file_synced(const std::filesystem::path& path, const std::function<void(const FileSink&)>& fill);

/// The list of the folder's files is on disk when it returns. Throws DataError.
void sync_folder(const std::filesystem::path& folder);

}  // namespace trireme
