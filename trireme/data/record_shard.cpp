#include "trireme/data/internal/record_shard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <limits>

#include "trireme/base/crc32c.h"
#include "trireme/base/error.h"
#include "trireme/data/tolerant.h"

namespace trireme::data {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are written as they lie in memory");

constexpr std::uint32_t kShardVersion = 1;
constexpr std::array<char, 8> kHeaderMark = {'T', 'R', 'R', 'E', 'C', 'O', 'R', 'D'};
constexpr std::array<char, 8> kTrailerMark = {'T', 'R', 'R', 'I', 'N', 'D', 'E', 'X'};
constexpr const char* kShardAdvice = "; restore the file, or pack the data again";
constexpr std::size_t kBuffer = std::size_t{1} << 20;

struct Header {
  std::array<char, 8> mark = kHeaderMark;
  std::uint32_t version = kShardVersion;
  std::uint32_t crc32c = 0;  ///< of the bytes before it
};
static_assert(sizeof(Header) == 16);

struct Trailer {
  std::uint64_t index_offset = 0;
  std::uint64_t records = 0;
  std::uint32_t index_crc32c = 0;
  std::uint32_t crc32c = 0;  ///< of the bytes before it
  std::array<char, 8> mark = kTrailerMark;
};
static_assert(sizeof(Trailer) == 32);

template <class Value>
std::string_view raw(const Value& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

template <class Value>
std::span<char> room_in(Value& value) {
  return {reinterpret_cast<char*>(&value), sizeof(value)};
}

template <class Entry>
std::string_view raw(const std::vector<Entry>& entries) {
  return {reinterpret_cast<const char*>(entries.data()), entries.size() * sizeof(Entry)};
}

template <class Block>
std::uint32_t own_crc32c(const Block& block) {
  return crc32c(raw(block).substr(0, offsetof(Block, crc32c)));
}

std::string hex8(std::uint32_t number) {
  std::array<char, 9> digits{};
  std::snprintf(digits.data(), digits.size(), "%08x", number);
  return digits.data();
}

}  // namespace

ShardWriter::ShardWriter(const FileSink& sink) : sink_(sink) {
  Header header;
  header.crc32c = own_crc32c(header);
  write(raw(header));
}

std::uint64_t ShardWriter::bytes_with(std::size_t record_bytes) const {
  return end_ + record_bytes + (index_.size() + 1) * sizeof(IndexEntry) + sizeof(Trailer);
}

void ShardWriter::add(std::string_view record) {
  if (record.size() > std::numeric_limits<std::uint32_t>::max())
    throw DataError(
        text("a sample of ", record.size(), " bytes is too large for a record, which has at most 4 GiB"));
  index_.push_back(
      {.offset = end_, .bytes = static_cast<std::uint32_t>(record.size()), .crc32c = crc32c(record)});
  write(record);
}

ShardSummary ShardWriter::finish() {
  Trailer trailer{.index_offset = end_, .records = index_.size(), .index_crc32c = crc32c(raw(index_))};
  trailer.crc32c = own_crc32c(trailer);
  write(raw(index_));
  write(raw(trailer));
  flush();
  return {.file = {}, .records = records(), .bytes = end_, .index_crc32c = trailer.index_crc32c};
}

void ShardWriter::write(std::string_view bytes) {
  end_ += bytes.size();
  if (buffer_.size() + bytes.size() > kBuffer) flush();
  if (bytes.size() > kBuffer) {
    sink_(std::as_bytes(std::span(bytes)));
  } else {
    buffer_ += bytes;
  }
}

void ShardWriter::flush() {
  sink_(std::as_bytes(std::span(buffer_)));
  buffer_.clear();
}

ShardFile::ShardFile(std::shared_ptr<const ByteSource> source, const ShardSummary& expected,
                     std::int64_t first)
    : source_(std::move(source)), first_(first), size_(static_cast<std::uint64_t>(source_->size())) {
  check_size(expected);
  read_index(expected);
}

void ShardFile::check_size(const ShardSummary& expected) const {
  if (size_ < expected.bytes)
    refuse(text("is cut short: it has ", size_, " bytes, the manifest says ", expected.bytes, kShardAdvice));
  if (size_ > expected.bytes)
    refuse(
        text("is another file: it has ", size_, " bytes, the manifest says ", expected.bytes, kShardAdvice));
}

void ShardFile::read_index(const ShardSummary& expected) {
  if (size_ < sizeof(Header) + sizeof(Trailer))
    refuse(text("has ", size_, " bytes, too few for a shard", kShardAdvice));
  Header header;
  read_at(0, room_in(header));
  if (header.mark != kHeaderMark) refuse(text("is no shard: it does not begin like one", kShardAdvice));
  if (header.crc32c != own_crc32c(header))
    refuse(text("is damaged at offset 0, in its header", kShardAdvice));
  if (header.version != kShardVersion)
    refuse(text("is of version ", header.version, ", this program reads version ", kShardVersion));
  const std::uint64_t end = size_ - sizeof(Trailer);
  Trailer trailer;
  read_at(end, room_in(trailer));
  if (trailer.mark != kTrailerMark || trailer.crc32c != own_crc32c(trailer))
    refuse(text("is damaged at offset ", end, ", in its trailer", kShardAdvice));
  const bool fits = trailer.records <= size_ / sizeof(IndexEntry) && trailer.index_offset <= end &&
                    end - trailer.index_offset == trailer.records * sizeof(IndexEntry);
  if (!fits || trailer.records != static_cast<std::uint64_t>(expected.records) ||
      trailer.index_crc32c != expected.index_crc32c) {
    refuse(text("is another shard than the manifest names: its trailer at offset ", end, " says ",
                trailer.records, " records and checksum ", hex8(trailer.index_crc32c), ", the manifest ",
                expected.records, " and ", hex8(expected.index_crc32c), kShardAdvice));
  }
  while (index_.size() < trailer.records) {
    const std::size_t done = index_.size();
    index_.resize(std::min<std::size_t>(trailer.records, done + kBuffer / sizeof(IndexEntry)));
    read_at(trailer.index_offset + done * sizeof(IndexEntry),
            {reinterpret_cast<char*>(index_.data() + done), (index_.size() - done) * sizeof(IndexEntry)});
  }
  if (crc32c(raw(index_)) != trailer.index_crc32c)
    refuse(text("is damaged from offset ", trailer.index_offset, ", in its index", kShardAdvice));
  std::uint64_t next = sizeof(Header);
  for (std::int64_t record = 0; record < records(); ++record) {
    if (entry(record).offset != next || next > trailer.index_offset)
      fail(record, text("has no place: the index has it at ", entry(record).offset,
                        ", the one before it ends at ", next));
    next += entry(record).bytes;
  }
  if (next != trailer.index_offset)
    refuse(text("has an index that leaves out bytes ", next, " to ", trailer.index_offset, kShardAdvice));
}

void ShardFile::read(std::int64_t record, std::int64_t count, std::span<char> into) const {
  const std::uint64_t begin = offset_of(record);
  const IndexEntry& last = entry(record + count - 1);
  const std::size_t bytes = last.offset + last.bytes - begin;
  read_of(record, begin, into.first(bytes));
  for (std::int64_t each = record; each < record + count; ++each) {
    const std::uint32_t crc = crc32c({into.data() + (offset_of(each) - begin), bytes_of(each)});
    if (crc != entry(each).crc32c)
      fail(each,
           text("is damaged: its CRC-32C is ", hex8(crc), ", the index says ", hex8(entry(each).crc32c)));
  }
}

void ShardFile::read_within(std::int64_t record, std::size_t begin, std::span<char> into) const {
  read_of(record, offset_of(record) + begin, into);
}

void ShardFile::read_at(std::uint64_t offset, std::span<char> into) const {
  source_->read(static_cast<std::int64_t>(offset), std::as_writable_bytes(into));
}

void ShardFile::read_of(std::int64_t record, std::uint64_t offset, std::span<char> into) const {
  try {
    read_at(offset, into);
  } catch (const ReadError& reason) {
    throw ReadError(text(spoken(record), " cannot be read now: ", reason.what()));
  } catch (const DataError& reason) {
    fail(record, text("cannot be read: ", reason.what()));
  }
}

void ShardFile::refuse(const std::string& what) const { throw DataError(text(source_->name(), " ", what)); }

void ShardFile::fail(std::int64_t record, const std::string& what) const {
  throw DataError(text(spoken(record), " ", what, kShardAdvice));
}

std::string ShardFile::spoken(std::int64_t record) const {
  return text(source_->name(), ": record ", record, " (sample ", first_ + record, " of its split, ",
              bytes_of(record), " bytes at offset ", offset_of(record), ")");
}

}  // namespace trireme::data
