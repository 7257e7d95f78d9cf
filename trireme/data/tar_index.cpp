#include "trireme/data/internal/tar_index.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <set>
#include <system_error>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/printable.h"
#include "trireme/base/random.h"
#include "trireme/data/internal/tar_members.h"

namespace trireme::data {
namespace {
namespace fs = std::filesystem;

constexpr std::string_view kMagic = "trireme tar index 3\n";
constexpr std::string_view kClassField = "cls";
constexpr std::size_t kMaxFields = 256;  ///< of a sample

struct MemberName {
  std::string_view key, field;
};

/// nullopt: not a member of a sample, such as files of an operating system or without an extension.
std::optional<MemberName> member_name(std::string_view name) {
  const std::size_t slash = name.rfind('/'), begin = slash == std::string_view::npos ? 0 : slash + 1;
  const std::size_t dot = name.find('.', begin);
  if (dot == std::string_view::npos || dot == begin || dot + 1 == name.size()) return std::nullopt;
  return MemberName{name.substr(0, dot), name.substr(dot + 1)};
}

/// For a message.
std::string listed(const std::vector<std::string>& fields) { return printable(join(fields), 200); }

struct IndexedPart {
  std::string field;
  Extent extent;
};

/// Consecutive numbers and strings. Numbers are in native byte order: an index in another one does not parse.
class IndexWriter {
 public:
  template <class Value>
  void values(const std::vector<Value>& values) {
    number(values.size());
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value));
  }
  void string(std::string_view string) {
    number(string.size());
    bytes_.append(string);
  }
  std::string take() { return std::move(bytes_); }

 private:
  void number(std::uint64_t number) { bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number)); }
  std::string bytes_;
};

/// good() is false after data that do not fit.
class IndexReader {
 public:
  explicit IndexReader(std::string_view bytes) : left_(bytes) {}
  template <class Value>
  std::vector<Value> values() {
    const std::string_view bytes = piece(sizeof(Value));
    std::vector<Value> values(bytes.size() / sizeof(Value));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::string string() { return std::string(piece(1)); }
  bool good() const { return good_ && left_.empty(); }

 private:
  std::string_view piece(std::size_t of_each) {
    std::uint64_t count = 0;
    if (left_.size() < sizeof(count)) return fail();
    std::memcpy(&count, left_.data(), sizeof(count));
    left_.remove_prefix(sizeof(count));
    if (count > left_.size() / of_each) return fail();
    const std::string_view piece = left_.substr(0, count * of_each);
    left_.remove_prefix(piece.size());
    return piece;
  }
  std::string_view fail() {
    good_ = false;
    left_ = {};
    return {};
  }

  std::string_view left_;
  bool good_ = true;
};

std::string checksum_of(std::string_view bytes) { return text(std::hex, Random::key_of(bytes), '\n'); }

}  // namespace

/// A pass in progress.
class TarScan {
 public:
  explicit TarScan(const ByteSource& shard) : shard_(shard), reader_(shard) {}

  TarIndex run() {
    for_each_member(reader_, [&](const TarMember& member) { take(member); });
    finish_sample();
    if (index_.size() == 0)
      throw DataError(
          text("no sample in ", shard_.name(), "; expected members KEY.FIELD, such as 000017.jpg"));
    for (const auto& [label, found] : labels_) index_.labels_.push_back(found);
    return std::move(index_);
  }

 private:
  void take(const TarMember& member) {
    const std::optional<MemberName> name = member_name(member.name);
    if (!name) return;
    if (parts_.empty() || name->key != key_) {
      finish_sample();
      key_ = name->key;
      first_ = member;
      const std::size_t before = keys_.size();
      keys_.emplace_hint(keys_.end(), key_);  // most archives are in order
      if (keys_.size() == before)
        fail(member, text("its sample '", printable(key_),
                          "' was there before; the members of a sample are consecutive, and no two "
                          "samples have the same key"));
    }
    const auto same = [&](const IndexedPart& part) { return part.field == name->field; };
    if (std::ranges::any_of(parts_, same)) fail(member, "it is there twice");
    if (parts_.size() == kMaxFields) fail(member, text("its sample has more than ", kMaxFields, " fields"));
    parts_.push_back({std::string(name->field), {.offset = member.offset, .size = member.size}});
    if (name->field == kClassField) take_class(member);
  }

  void take_class(const TarMember& member) {
    constexpr std::int64_t kMaxDigits = 32;
    const auto found =
        member.size <= kMaxDigits ? class_in(reader_.read(member.offset, member.size)) : std::nullopt;
    if (!found) fail(member, "it holds no class: expected a whole number from 0 on, in digits");
    const std::int64_t sample = index_.size();
    ++labels_.try_emplace(*found, TarIndex::Label{.label = *found, .first_sample = sample})
          .first->second.samples;
  }

  void finish_sample() {
    if (parts_.empty()) return;
    std::ranges::sort(parts_, {}, &IndexedPart::field);
    std::vector<std::string> fields;
    for (const IndexedPart& part : parts_) fields.push_back(part.field);
    if (index_.size() == 0) index_.fields_ = fields;
    if (fields != index_.fields_) {
      fail(first_, text("sample '", printable(key_), "' has ", listed(fields),
                        ", and the first of the shard, '", printable(index_.key(0)), "', has ",
                        listed(index_.fields_), "; all samples have the same fields"));
    }
    for (const IndexedPart& part : parts_) index_.extents_.push_back(part.extent);
    index_.keys_ += key_;
    index_.key_ends_.push_back(index_.keys_.size());
    parts_.clear();
  }

  [[noreturn]] void fail(const TarMember& member, const std::string& what) const {
    throw DataError(
        text(shard_.name(), " at ", member.offset, ", member '", printable(member.name), "': ", what));
  }

  const ByteSource& shard_;
  ForwardReader reader_;
  TarIndex index_;
  std::string key_;
  TarMember first_;  ///< of the current sample
  std::vector<IndexedPart> parts_;
  /// Not a hash set: an archive can be crafted so that all keys have one hash.
  std::set<std::string> keys_;
  std::map<std::int64_t, TarIndex::Label> labels_;
};

TarIndex TarIndex::scan(const ByteSource& shard) { return TarScan(shard).run(); }

std::string_view TarIndex::key(std::int64_t sample) const {
  const auto i = static_cast<std::size_t>(sample);
  const std::uint64_t begin = i == 0 ? 0 : key_ends_[i - 1];
  return std::string_view(keys_).substr(begin, key_ends_[i] - begin);
}

std::string TarIndex::to_bytes(const ByteSource& shard) const {
  IndexWriter writer;
  writer.string(shard.name());
  writer.string(shard.version());
  std::vector<std::uint64_t> sizes;
  for (const std::string& field : fields_) sizes.push_back(field.size());
  writer.values(sizes);
  for (const std::string& field : fields_) writer.string(field);
  writer.values(labels_);
  writer.string(keys_);
  writer.values(key_ends_);
  writer.values(extents_);
  const std::string body = writer.take();
  return text(kMagic, checksum_of(body), body);
}

std::optional<TarIndex> TarIndex::from_bytes(std::string_view bytes, const ByteSource& shard) {
  if (!bytes.starts_with(kMagic)) return std::nullopt;
  bytes.remove_prefix(kMagic.size());
  const std::size_t line = bytes.find('\n');
  if (line == std::string_view::npos) return std::nullopt;
  const std::string_view body = bytes.substr(line + 1);
  if (checksum_of(body) != bytes.substr(0, line + 1)) return std::nullopt;
  IndexReader reader(body);
  TarIndex index;
  if (reader.string() != shard.name() || reader.string() != shard.version()) return std::nullopt;
  const std::size_t known_fields = reader.values<std::uint64_t>().size();
  for (std::size_t i = 0; i < known_fields; ++i) index.fields_.push_back(reader.string());
  index.labels_ = reader.values<Label>();
  index.keys_ = reader.string();
  index.key_ends_ = reader.values<std::uint64_t>();
  index.extents_ = reader.values<Extent>();
  const std::size_t fields = index.fields_.size(), samples = index.key_ends_.size();
  if (!reader.good() || samples == 0 || index.extents_.size() != samples * fields) return std::nullopt;
  return index;
}

std::optional<std::int64_t> class_in(std::string_view content) {
  const std::string_view digits = trim(content);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 0) return std::nullopt;
  return value;
}

TarIndex index_of(const ByteSource& shard, const fs::path& folder, const Log& log) {
  if (folder.empty()) return TarIndex::scan(shard);
  const fs::path path = folder / text(std::hex, Random::key_of(shard.name()), ".tarindex");
  std::error_code ignored;
  if (fs::exists(path, ignored)) {
    try {
      if (auto kept = TarIndex::from_bytes(read_file(path), shard)) return *std::move(kept);
    } catch (const DataError& error) {
      log.warning(error.what(), "; ", shard.name(), " is looked through again");
    }
  }
  TarIndex index = TarIndex::scan(shard);
  try {
    make_folder(folder);
    // All ranks of a host may write this file at the same time.
    const fs::path own = text(path.string(), '.', ::getpid(), '.', std::this_thread::get_id());
    write_file_atomic(own, index.to_bytes(shard));
    fs::rename(own, path);
  } catch (const std::exception& error) {
    log.warning(error.what(), "; each start looks through ", shard.name(), " again");
  }
  return index;
}

}  // namespace trireme::data
