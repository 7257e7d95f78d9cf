#pragma once
// The regular files in a tar archive, found by one pass over its headers. Formats: ustar (POSIX.1-1988), pax
// headers of POSIX.1-2001, and older headers without a magic. GNU tar's long names and base-256 sizes are
// read, too. Stateless.

#include <functional>
#include <string>

#include "trireme/data/byte_source.h"

namespace trireme::data {

/// Reads on through a source, in pieces of its read_ahead(). One thread.
class ForwardReader {
 public:
  explicit ForwardReader(const ByteSource& source) : source_(source) {}
  const ByteSource& source() const { return source_; }
  /// `size` bytes at any offset; cheap where the offsets rise.
  std::string read(std::int64_t offset, std::int64_t size);

 private:
  const ByteSource& source_;
  std::int64_t begin_ = 0;
  std::string window_;
};

struct TarMember {
  std::string name;
  std::int64_t offset = 0;  ///< of its content
  std::int64_t size = 0;
};

/// Calls `take` for each regular file, in the order of the archive; folders are passed over. Throws
/// DataError, with file, offset and member: an archive that is cut short, compressed, or continues after its
/// end; a header with a wrong checksum; links, devices, sparse files and types unknown; a name that leads out
/// of the archive; a size beyond the file.
void for_each_member(ForwardReader& reader, const std::function<void(const TarMember&)>& take);

}  // namespace trireme::data
