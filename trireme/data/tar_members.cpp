#include "trireme/data/internal/tar_members.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/base/printable.h"

namespace trireme::data {
namespace {

constexpr std::int64_t kBlock = 512;
/// Limit of a long name or a pax header. A larger one is damage.
constexpr std::int64_t kMaxExtraBytes = 1 << 20;

std::int64_t in_whole_blocks(std::int64_t size) { return (size + kBlock - 1) / kBlock * kBlock; }

std::string_view until_zero(std::string_view field) { return field.substr(0, field.find('\0')); }

bool only_zeros(std::string_view bytes) { return bytes.find_first_not_of('\0') == std::string_view::npos; }

/// Fields of a header, by the names that POSIX gives them.
struct Header {
  std::string_view block;
  std::string_view field(std::size_t offset, std::size_t size) const { return block.substr(offset, size); }
  char type() const { return block[156]; }
  std::string name() const {
    const std::string name(until_zero(field(0, 100)));
    const std::string_view prefix =
        field(257, 6) == std::string_view("ustar\0", 6) ? until_zero(field(345, 155)) : std::string_view();
    return prefix.empty() ? name : text(prefix, '/', name);
  }
};

/// Octal digits between blanks, or GNU's base 256 with the first bit set. None: neither, or too large.
std::optional<std::int64_t> number_in(std::string_view field) {
  if ((static_cast<unsigned char>(field[0]) & 0x80) != 0) {
    std::int64_t value = static_cast<unsigned char>(field[0]) & 0x7f;
    for (const char byte : field.substr(1)) {
      if (value > std::numeric_limits<std::int64_t>::max() >> 8) return std::nullopt;
      value = value << 8 | static_cast<unsigned char>(byte);
    }
    return value;
  }
  const std::string_view digits = trim(until_zero(field));
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 8);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 0) return std::nullopt;
  return value;
}

/// Old programs summed the bytes as signed.
bool checksum_holds(const Header& header) {
  std::int64_t sum = 0, of_signed = 0;
  for (std::size_t i = 0; i < header.block.size(); ++i) {
    const char byte = i >= 148 && i < 156 ? ' ' : header.block[i];
    sum += static_cast<unsigned char>(byte);
    of_signed += static_cast<signed char>(byte);
  }
  const std::optional<std::int64_t> found = number_in(header.field(148, 8));
  return found && (*found == sum || *found == of_signed);
}

bool leads_out(const std::string& name) {
  if (name.starts_with('/')) return true;
  const std::vector<std::string> parts = split(name, '/');
  return std::ranges::find(parts, "..") != parts.end();
}

/// One pass over an archive. Each header gives the place of the next one.
class Archive {
 public:
  explicit Archive(ForwardReader& reader) : reader_(reader), size_(reader.source().size()) {}

  void list(const std::function<void(const TarMember&)>& take) {
    if (size_ >= 2 && reader_.read(0, 2) == "\x1f\x8b")
      fail(
          "is compressed by gzip, and a sample of it could only be reached by reading all before it; unpack "
          "it");
    while (next_header()) {
      const Header header{block_};
      const std::int64_t content = at_ + kBlock;
      const std::optional<std::int64_t> in_header = number_in(header.field(124, 12));
      name_ = pax_name_ ? *pax_name_ : header.name();
      if (!in_header) fail("its size is not a number");
      const std::int64_t size = pax_size_.value_or(*in_header);
      if (size > size_ - content)
        fail(text("is said to have ", size, " bytes, and ", size_ - content,
                  " follow; the archive is cut short"));
      if (!take_extra(header.type(), content, size)) {
        take_member(header.type(), {.name = name_, .offset = content, .size = size}, take);
        pax_name_.reset(), pax_size_.reset();
      }
      at_ = content + in_whole_blocks(size);
    }
  }

 private:
  /// False at the end of the archive.
  bool next_header() {
    name_.clear();
    if (size_ - at_ < kBlock) fail("ends without the two empty blocks that end an archive: it is cut short");
    block_ = reader_.read(at_, kBlock);
    if (only_zeros(block_)) {
      for (std::int64_t behind = at_; behind < size_; behind += kBlock) {
        if (only_zeros(reader_.read(behind, std::min(kBlock, size_ - behind)))) continue;
        at_ = behind;
        fail("has members after its end, as concatenated archives do; name each archive by itself");
      }
      return false;
    }
    if (!checksum_holds({block_})) fail("has no header of a member there: the checksum is wrong");
    return true;
  }

  /// Whether the header only describes the next member.
  bool take_extra(char type, std::int64_t content, std::int64_t size) {
    if (type != 'L' && type != 'K' && type != 'x' && type != 'g') return false;
    if (size > kMaxExtraBytes) fail(text("a name or header of ", size, " bytes is damage"));
    const std::string extra = reader_.read(content, size);
    if (type == 'L') pax_name_ = std::string(until_zero(extra));
    if (type == 'x') take_pax(extra);  // a 'g' header, for all members, has only comments
    return true;
  }

  /// "LENGTH KEY=VALUE\n", the length being that of the whole record.
  void take_pax(std::string_view records) {
    while (!records.empty() && !only_zeros(records)) {
      std::size_t length = 0;
      const auto [end, error] = std::from_chars(records.data(), records.data() + records.size(), length);
      const auto digits = static_cast<std::size_t>(end - records.data());
      if (error != std::errc() || length > records.size() || length < digits + 3 || records[digits] != ' ' ||
          records[length - 1] != '\n')
        fail("its pax header is damaged");
      const std::string_view record = records.substr(digits + 1, length - digits - 2);
      const std::size_t equals = record.find('=');
      if (equals == std::string_view::npos) fail("its pax header is damaged");
      take_pax(record.substr(0, equals), record.substr(equals + 1));
      records.remove_prefix(length);
    }
  }

  void take_pax(std::string_view key, std::string_view value) {
    if (key.starts_with("GNU.sparse."))
      fail("is stored as a sparse file; store it whole (tar without --sparse)");
    if (key == "path") pax_name_ = std::string(value);
    if (key != "size") return;
    std::int64_t size = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), size);
    if (error != std::errc() || end != value.data() + value.size() || size < 0)
      fail("its size is not a number");
    pax_size_ = size;
  }

  void take_member(char type, const TarMember& member, const std::function<void(const TarMember&)>& take) {
    if (leads_out(member.name)) fail("its name leads out of the archive");
    switch (type) {
      case '\0':
      case '0':
      case '7':
        if (!member.name.ends_with('/')) take(member);  // before POSIX, a trailing slash was a folder
        return;
      case '5':
        return;
      case '1':
      case '2':
        fail("is a link; store the file itself (tar --dereference --hard-dereference)");
      case 'S':
        fail("is stored as a sparse file; store it whole (tar without --sparse)");
      default:
        fail(text("is a member of type '", type, "', which holds no sample"));
    }
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(text(reader_.source().name(), " at ", at_,
                         name_.empty() ? "" : text(", member '", printable(name_), "'"), ": ",
                         name_.empty() ? "it " : "", what));
  }

  ForwardReader& reader_;
  const std::int64_t size_;
  std::int64_t at_ = 0;
  std::string block_, name_;
  std::optional<std::string> pax_name_;
  std::optional<std::int64_t> pax_size_;
};

}  // namespace

std::string ForwardReader::read(std::int64_t offset, std::int64_t size) {
  const auto end = [&] { return begin_ + static_cast<std::int64_t>(window_.size()); };
  if (offset < begin_ || offset + size > end()) {
    const std::int64_t wanted = std::max(size, source_.read_ahead());
    window_ = read_text(source_, offset, std::max(size, std::min(wanted, source_.size() - offset)));
    begin_ = offset;
  }
  return window_.substr(static_cast<std::size_t>(offset - begin_), static_cast<std::size_t>(size));
}

void for_each_member(ForwardReader& reader, const std::function<void(const TarMember&)>& take) {
  Archive(reader).list(take);
}

}  // namespace trireme::data
