#pragma once
// The members of a zip archive that are stored as they are (np.savez writes such), found by its directory.
// Source: PKWARE's APPNOTE 6.3, with the 64-bit forms. Stateless.

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/data/byte_source.h"

namespace trireme::data {

struct ZipMember {
  std::string name;
  std::int64_t offset = 0;  ///< of its content
  std::int64_t size = 0;
};

/// Throws DataError, with file and member: no such archive, a damaged directory, members that are compressed
/// or encrypted.
std::vector<ZipMember> zip_members(const ByteSource& archive);

}  // namespace trireme::data
