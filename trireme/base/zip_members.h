#pragma once
// The members of a zip archive, found by its directory. np.savez and torch.save write archives whose members
// are stored as they are. Source: PKWARE's APPNOTE 6.3, with the 64-bit forms. Every number of the archive is
// checked against its size before bytes are read. Stateless.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// Where the bytes of an archive come from.
struct ZipSource {
  std::string name;  ///< for messages
  std::int64_t size = 0;
  std::function<std::string(std::int64_t offset, std::int64_t size)> read;  ///< of a range within `size`
  std::function<bool(std::string_view member)> leave_out = {};              ///< not needed, in any format
};

/// A file in an archive.
struct ZipMember {
  std::string name;
  std::int64_t offset = 0;  ///< of its content
  std::int64_t size = 0;
};

/// Time and memory are linear in the directory, of at most 64 MiB. Members may overlap. Throws DataError,
/// with file and member: no such archive, a damaged directory, a member beyond the end, members that are
/// compressed or encrypted; and the exceptions of `read`.
std::vector<ZipMember> zip_members(const ZipSource& archive);

}  // namespace trireme
