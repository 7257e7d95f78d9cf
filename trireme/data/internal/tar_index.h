#pragma once
// Content of one tar shard in the layout of WebDataset, with places. The members of a sample are one after
// the other and have a common key: the text in a member's name before the first dot of its last part; the
// rest is the field. An index is made by one pass over the shard's headers, or taken from a file that such a
// pass has left. Immutable once made; thread-safe.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/log.h"
#include "trireme/data/byte_source.h"

namespace trireme::data {

struct Extent {
  std::int64_t offset = 0, size = 0;
};

class TarIndex {
 public:
  /// One pass. Throws DataError, with file, offset and member: members that for_each_member rejects, samples
  /// whose fields differ, a key that comes again, a class that is no whole number from 0 on, no sample.
  static TarIndex scan(const ByteSource& shard);
  /// As to_bytes made it; none: damaged, or of another shard or version of it.
  static std::optional<TarIndex> from_bytes(std::string_view bytes, const ByteSource& shard);
  std::string to_bytes(const ByteSource& shard) const;

  std::int64_t size() const { return static_cast<std::int64_t>(key_ends_.size()); }
  std::string_view key(std::int64_t sample) const;
  /// In the order of their names; every sample has them all.
  const std::vector<std::string>& fields() const { return fields_; }
  const Extent& extent(std::int64_t sample, std::size_t field) const {
    return extents_[static_cast<std::size_t>(sample) * fields_.size() + field];
  }
  /// A class of the field "cls".
  struct Label {
    std::int64_t label = 0, first_sample = 0, samples = 0;
  };
  /// Those that occur, in ascending order; empty where samples have no such field.
  const std::vector<Label>& labels() const { return labels_; }

 private:
  friend class TarScan;
  std::vector<std::string> fields_;
  std::vector<Label> labels_;
  std::string keys_;  ///< one after the other
  std::vector<std::uint64_t> key_ends_;
  std::vector<Extent> extents_;  ///< (sample, field)
};

/// The class that a "cls" member holds, as decimal digits; none: it is something else.
std::optional<std::int64_t> class_in(std::string_view content);

/// From a file in `folder`, where it has an index of this very shard, else by a pass, which then writes it
/// there. An empty folder: always by a pass. A failed write is a warning.
TarIndex index_of(const ByteSource& shard, const std::filesystem::path& folder, const Log& log);

}  // namespace trireme::data
