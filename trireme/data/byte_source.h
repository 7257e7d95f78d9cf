#pragma once
// Source of the bytes of a data set's files: a length and ranges of it, from a file, a server, or a cache
// before either. Reads return the content at the time of opening. A source whose content changes afterwards
// throws an error. Immutable; thread-safe.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace trireme::data {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual const std::string& name() const = 0;  ///< for messages: a path, an URL
  virtual std::int64_t size() const = 0;
  /// Another text when the content is another: derived data can be cached under name and version.
  virtual const std::string& version() const = 0;
  /// Size of a read that costs about as much as one byte, for readers of consecutive ranges.
  virtual std::int64_t read_ahead() const { return 4096; }
  /// Fills `into` from `offset` on. Throws DataError, with name and offset: a range beyond the end, a source
  /// that cannot be read, is cut short or has changed since it was opened.
  virtual void read(std::int64_t offset, std::span<std::byte> into) const = 0;
  /// Hint that the range will be read soon: a source may fetch it meanwhile. A range beyond the end has no
  /// effect.
  virtual void will_read(std::int64_t /*offset*/, std::int64_t /*size*/) const {}
  /// Throws DataError when the content is another than at the start, where read() does not look each time.
  virtual void check_unchanged() const {}
};

/// A file, by explicit reads: never mapped, because a file that is cut while it is mapped ends the process.
/// It is opened for each read, so that a data set may have more files than a process may hold open. Throws
/// DataError.
std::shared_ptr<const ByteSource> open_file(const std::filesystem::path& path);

/// The same, opened once: it costs less to read, and only check_unchanged() looks whether the file has
/// changed.
std::shared_ptr<const ByteSource> hold_file(const std::filesystem::path& path);

/// `size` bytes of a source as text.
std::string read_text(const ByteSource& source, std::int64_t offset, std::int64_t size);

/// Throws DataError unless the range is within the source: for implementations.
void check_range(const ByteSource& source, std::int64_t offset, std::size_t size);

}  // namespace trireme::data
