#pragma once
// One file of packed data: a header, records one after the other, an index of them, a trailer. Numbers are
// little-endian; the layout byte by byte is in docs/data.md. Written once, read by calls and never mapped,
// since a mapping answers a file that was cut short with SIGBUS. It allocates memory only for bytes that have
// come. A shard is unchanged when its index has the manifest's checksum.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/files.h"
#include "trireme/data/byte_source.h"

namespace trireme::data {

/// The manifest's entry of a shard.
struct ShardSummary {
  std::string file;
  std::int64_t records = 0;
  std::uint64_t bytes = 0;
  std::uint32_t index_crc32c = 0;
};

/// Writes a shard from its first byte to its last. One thread.
class ShardWriter {
 public:
  explicit ShardWriter(const FileSink& sink);
  /// Bytes that the file has if it gets this record and no other.
  std::uint64_t bytes_with(std::size_t record_bytes) const;
  std::int64_t records() const { return static_cast<std::int64_t>(index_.size()); }
  /// Throws DataError for a record beyond 4 GiB.
  void add(std::string_view record);
  ShardSummary finish();

  struct IndexEntry {
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0;
    std::uint32_t crc32c = 0;
  };
  static_assert(sizeof(IndexEntry) == 16);

 private:
  void write(std::string_view bytes);
  void flush();

  const FileSink& sink_;
  std::string buffer_;
  std::uint64_t end_ = 0;
  std::vector<IndexEntry> index_;
};

/// Reads records. Immutable; thread-safe.
class ShardFile {
 public:
  /// Throws DataError: of another size or version than `expected`, or header, trailer or index are not as
  /// they were written. `first` is the number of its first record in the split.
  ShardFile(std::shared_ptr<const ByteSource> source, const ShardSummary& expected, std::int64_t first);

  std::int64_t first() const { return first_; }
  std::int64_t records() const { return static_cast<std::int64_t>(index_.size()); }
  std::uint64_t offset_of(std::int64_t record) const { return entry(record).offset; }
  std::size_t bytes_of(std::int64_t record) const { return entry(record).bytes; }

  /// These consecutive records in one piece, which `into` has room for. Throws DataError with file, offset
  /// and sample when one is not as it was written, ReadError when it may be read another time.
  void read(std::int64_t record, std::int64_t count, std::span<char> into) const;
  /// Bytes within a record that was read whole before, unchecked. Throws DataError when they are gone.
  void read_within(std::int64_t record, std::size_t begin, std::span<char> into) const;
  /// So many bytes from there on will be read soon: ByteSource::will_read.
  void will_read(std::int64_t record, std::size_t begin, std::size_t bytes) const {
    source_->will_read(static_cast<std::int64_t>(offset_of(record) + begin),
                       static_cast<std::int64_t>(bytes));
  }
  /// Throws DataError when the file is not the one that was opened.
  void check_unchanged() const { source_->check_unchanged(); }
  [[noreturn]] void fail(std::int64_t record, const std::string& what) const;

 private:
  using IndexEntry = ShardWriter::IndexEntry;
  const IndexEntry& entry(std::int64_t record) const { return index_[static_cast<std::size_t>(record)]; }
  void check_size(const ShardSummary& expected) const;
  void read_index(const ShardSummary& expected);
  void read_at(std::uint64_t offset, std::span<char> into) const;
  /// The same of a record, which an error names.
  void read_of(std::int64_t record, std::uint64_t offset, std::span<char> into) const;
  [[noreturn]] void refuse(const std::string& what) const;
  std::string spoken(std::int64_t record) const;

  std::shared_ptr<const ByteSource> source_;
  std::int64_t first_;
  std::uint64_t size_;
  std::vector<IndexEntry> index_;
};

}  // namespace trireme::data
