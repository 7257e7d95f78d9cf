#pragma once
// Whole files of third parties, of which one that is too large is not read. Thread-safe.

#include <cstdint>
#include <filesystem>
#include <string>

namespace trireme {

/// Maximum size of a configuration, in a file of its own, of a run and of a checkpoint.
inline constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{4} << 20;

/// The whole file. Throws DataError when it cannot be read, is no regular file, or has more than
/// `most_bytes`; the message names the expected content `what`, such as "manifest of a checkpoint".
std::string read_bounded_file(const std::filesystem::path& path, std::uint64_t most_bytes,
                              const std::string& what);

/// The same for a path of the user, which may be a pipe or a device: <(command), /dev/stdin, /dev/null.
std::string read_bounded_stream(const std::filesystem::path& path, std::uint64_t most_bytes,
                                const std::string& what);

}  // namespace trireme
