#pragma once
// Reads one file in the idx format of the MNIST family, as it is or compressed with gzip. Source: the
// format's description on Yann LeCun's MNIST page: two zero bytes, a type byte (8: unsigned bytes, the only
// type that these data sets use), the number of dims, each dim as a big-endian 32-bit number, then the
// values. Stateless; thread-safe.

#include <cstdint>
#include <filesystem>
#include <vector>

namespace trireme::data {

struct IdxFile {
  std::vector<std::int64_t> dims;
  std::vector<std::uint8_t> values;  ///< product of dims
};

/// Throws DataError when the file is missing, damaged, not idx, of another type or number of dims, shorter
/// than its header says, or longer; the message names the path, the expected and the found value.
IdxFile read_idx(const std::filesystem::path& path, std::size_t num_dims);

}  // namespace trireme::data
