#include "trireme/base/zip_members.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/base/printable.h"

namespace trireme {
namespace {

constexpr std::string_view kEndMark("PK\5\6", 4), kEnd64Mark("PK\6\6", 4), kEntryMark("PK\1\2", 4),
    kLocalMark("PK\3\4", 4);
constexpr std::size_t kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20, kEntryBytes = 46;
constexpr std::int64_t kLocalBytes = 30, kMaxCommentBytes = 65535;
/// Limit of a directory. Archives of arrays or weights have smaller ones.
constexpr std::int64_t kMaxDirectoryBytes = std::int64_t{64} << 20;
constexpr std::uint64_t kIn64 = 0xffffffff;

/// A little-endian number of `size` bytes.
std::uint64_t zip_number(std::string_view bytes, std::size_t at, std::size_t size) {
  std::uint64_t value = 0;
  for (std::size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

class ZipArchive {
 public:
  explicit ZipArchive(const ZipSource& archive) : archive_(archive) {}

  std::vector<ZipMember> members() const {
    const Directory directory = find_directory();
    if (directory.size > kMaxDirectoryBytes || directory.offset > archive_.size - directory.size)
      fail("its directory is damaged");
    const std::string bytes = range(directory.offset, directory.size);
    std::vector<ZipMember> members;
    for (std::string_view left = bytes; !left.empty();) {
      if (left.size() < kEntryBytes || !left.starts_with(kEntryMark)) fail("its directory is damaged");
      const std::size_t name = zip_number(left, 28, 2), extra = zip_number(left, 30, 2),
                        comment = zip_number(left, 32, 2);
      if (left.size() < kEntryBytes + name + extra + comment) fail("its directory is damaged");
      const std::string_view member = left.substr(kEntryBytes, name);
      if (!archive_.leave_out || !archive_.leave_out(member))
        members.push_back(entry(left, member, left.substr(kEntryBytes + name, extra)));
      left.remove_prefix(kEntryBytes + name + extra + comment);
    }
    return members;
  }

 private:
  struct Directory {
    std::int64_t offset = 0, size = 0;
  };

  Directory find_directory() const {
    const std::int64_t tail_bytes =
        std::min<std::int64_t>(archive_.size, static_cast<std::int64_t>(kEndBytes) + kMaxCommentBytes);
    const std::string tail = range(archive_.size - tail_bytes, tail_bytes);
    const std::size_t end = tail.rfind(kEndMark);
    if (end == std::string::npos || tail.size() - end < kEndBytes)
      fail("it is no zip archive, or cut short: its directory is not there");
    std::uint64_t size = zip_number(tail, end + 12, 4), offset = zip_number(tail, end + 16, 4);
    if (offset == kIn64 || size == kIn64) {
      if (end < kLocator64Bytes) fail("its directory is damaged");
      const std::uint64_t at = zip_number(tail, end - kLocator64Bytes + 8, 8);
      if (at > static_cast<std::uint64_t>(archive_.size)) fail("its directory is damaged");
      const std::string end64 = range(static_cast<std::int64_t>(at), kEnd64Bytes);
      if (!end64.starts_with(kEnd64Mark)) fail("its directory is damaged");
      size = zip_number(end64, 40, 8), offset = zip_number(end64, 48, 8);
    }
    const auto whole = static_cast<std::uint64_t>(archive_.size);
    if (size > whole || offset > whole) fail("its directory is damaged");
    return {static_cast<std::int64_t>(offset), static_cast<std::int64_t>(size)};
  }

  ZipMember entry(std::string_view fixed, std::string_view name, std::string_view extra) const {
    const std::string shown = text("member '", printable(name), "' ");
    if ((zip_number(fixed, 8, 2) & 1) != 0) fail(shown + "is encrypted");
    if (zip_number(fixed, 10, 2) != 0)
      fail(shown +
           "is compressed; expected members that are stored as they are, as np.savez and torch.save write "
           "them");
    std::uint64_t size = zip_number(fixed, 24, 4), local = zip_number(fixed, 42, 4);
    while (extra.size() >= 4) {
      const std::size_t length = zip_number(extra, 2, 2);
      if (extra.size() < 4 + length) break;
      if (zip_number(extra, 0, 2) == 1)
        take_64(extra.substr(4, length), zip_number(fixed, 20, 4) == kIn64, size, local);
      extra.remove_prefix(4 + length);
    }
    const auto whole = static_cast<std::uint64_t>(archive_.size);
    if (whole < static_cast<std::uint64_t>(kLocalBytes) ||
        local > whole - static_cast<std::uint64_t>(kLocalBytes))
      fail(shown + "lies beyond the end of the file");
    const std::string header = range(static_cast<std::int64_t>(local), kLocalBytes);
    if (!header.starts_with(kLocalMark)) fail(shown + "has no header where the directory says");
    const std::uint64_t begin = local + static_cast<std::uint64_t>(kLocalBytes) + zip_number(header, 26, 2) +
                                zip_number(header, 28, 2);
    if (begin > whole || size > whole - begin) fail(shown + "goes beyond the end of the file");
    return {std::string(name), static_cast<std::int64_t>(begin), static_cast<std::int64_t>(size)};
  }

  /// Reads the numbers that did not fit into 32 bits, in this order.
  static void take_64(std::string_view numbers, bool stored_size, std::uint64_t& size, std::uint64_t& local) {
    const auto next = [&](std::uint64_t& number) {
      if (numbers.size() < 8) return;
      number = zip_number(numbers, 0, 8);
      numbers.remove_prefix(8);
    };
    std::uint64_t ignored = 0;
    if (size == kIn64) next(size);
    if (stored_size) next(ignored);
    if (local == kIn64) next(local);
  }

  std::string range(std::int64_t offset, std::int64_t size) const {
    if (offset < 0 || size < 0 || offset > archive_.size || size > archive_.size - offset)
      fail("its directory is damaged");
    return archive_.read(offset, size);
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(text("cannot read ", archive_.name, ": ", what));
  }

  const ZipSource& archive_;
};

}  // namespace

std::vector<ZipMember> zip_members(const ZipSource& archive) { return ZipArchive(archive).members(); }

}  // namespace trireme
