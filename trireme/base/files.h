#pragma once
// Files: whole reads, and writes that are never seen half done (temporary name, sync, rename, sync of the
// folder). Every failure is a DataError that names the path and the system's reason. Thread-safe as long as
// two callers do not write the same path.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace trireme {

/// The whole file. Throws DataError when it cannot be read.
std::string read_file(const std::filesystem::path& path);

/// Receives the next bytes of a file that is being written.
using FileSink = std::function<void(std::span<const std::byte>)>;

/// Writes `path` through `fill`, then makes it appear at once. On any error the old file stays as it was and
/// no temporary file is left. Throws DataError (disk full, not writable) or the exceptions of `fill`.
void write_file_atomic(const std::filesystem::path& path, const std::function<void(const FileSink&)>& fill);

/// The same with the whole content given.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);

/// Creates the folder and its parents; fine if it is there. Throws DataError.
void make_folder(const std::filesystem::path& path);

}  // namespace trireme
