#pragma once
// The common part of reading a file, and reading one with a limit. Thread-safe.

#include <cstddef>
#include <filesystem>
#include <string>

namespace trireme {

/// The first `most_bytes` of a file or a stream; all of it where it has fewer. Throws DataError as
/// read_file() does.
std::string read_beginning(const std::filesystem::path& path, std::size_t most_bytes);

}  // namespace trireme
