#pragma once
// Shared by the fuzz targets. A target is a source NAME_fuzz.cpp with the function fuzz_NAME, which libFuzzer
// calls in the program of that name. It passes the bytes to one parser of outside input, which parses or
// rejects them. A rejection is one of the errors for bad input. Any other exception ends the process and is a
// fault.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"

namespace trireme::fuzz {

inline std::string_view text_in(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Runs `read`. Returns false if it rejected its input.
template <class Read>
bool is_read(const Read& read) {
  try {
    read();
    return true;
  } catch (const InvalidArgument&) {
  } catch (const DataError&) {
  }
  return false;
}

/// Splits the input at each separator, into at most `most` parts. For targets that read several texts.
std::vector<std::string_view> parts_of(std::string_view input, std::size_t most, char separator = '\x1f');

/// One folder for the whole process. Each input rewrites its files.
class Folder {
 public:
  const std::filesystem::path& path() const { return folder_.path(); }
  /// Writes `content` to the file and returns its path.
  std::filesystem::path put(const std::string& name, std::string_view content) const;

 private:
  test::TemporaryFolder folder_;
};

}  // namespace trireme::fuzz
