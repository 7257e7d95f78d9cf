#pragma once
// Small files that are replaced often and need not outlive a crash of the host. Thread-safe as long as two
// callers do not write the same path.

#include <filesystem>
#include <string_view>

namespace trireme {

/// Makes `content` appear at once under `path`, without a wait for the disk: readers see the old or the new
/// content, also when this process is killed. After a crash of the host the file may be empty or gone. On any
/// error the old file stays. Throws DataError (disk full, not writable).
void replace_file(const std::filesystem::path& path, std::string_view content);

}  // namespace trireme
