#include "trireme/data/record_dataset.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/data/internal/awaited_read.h"
#include "trireme/data/internal/packed_manifest.h"
#include "trireme/data/internal/record_split.h"
#include "trireme/data/internal/stacked_targets.h"

namespace trireme::data {
namespace {

/// Bytes of one read: few enough to stay in the cache until they are checked and copied into rows.
constexpr std::size_t kMaxAtOnce = std::size_t{256} << 10;

/// Throws DataError for packed text.
const RecordLayout& layout_in(const PackedManifest& manifest, const PackedFiles& files) {
  if (manifest.tokens) throw DataError(text(files.name(), " holds a text; read it as a TokenDataset"));
  return manifest.layout;
}

/// Memory without zero initialization.
struct Buffer {
  explicit Buffer(std::size_t count) : bytes(std::make_unique_for_overwrite<char[]>(count)), size(count) {}
  std::span<char> room() const { return {bytes.get(), size}; }
  std::unique_ptr<char[]> bytes;
  std::size_t size;
};

}  // namespace

struct RecordDataset::State {
  State(const PackedFiles& files, const PackedManifest& manifest, const std::string& split,
        std::int64_t pixels)
      : layout(layout_in(manifest, files)),
        fixed(layout.fixed()),
        most_pixels(pixels),
        records(files, manifest.split(split, files)) {
    if (!fixed) return;
    for (const auto& shard : records.shards()) {
      for (std::int64_t i = 0; i < shard->records(); ++i) {
        if (shard->bytes_of(i) == layout.bytes()) continue;
        shard->fail(i, text("is not as long as its fields: they have ", layout.bytes(), " bytes"));
      }
    }
  }

  void check_index(std::int64_t index) const {
    require(index >= 0 && index < records.size(), "sample ", index,
            " of packed data was asked for, there are ", records.size());
  }

  Example parse(std::int64_t index, const Needed& needed = {}) const {
    const RecordSplit::Place place = records.find(index);
    const Buffer buffer(place.shard->bytes_of(place.record));
    place.shard->read(place.record, 1, buffer.room());
    try {
      return parse_record(layout, {buffer.bytes.get(), buffer.size}, needed, most_pixels);
    } catch (const DataError& problem) {
      place.shard->fail(place.record, text("cannot be read: ", problem.what()));
    }
  }

  /// The rows of `indices`, sorted by sample.
  static std::vector<std::size_t> by_place(std::span<const std::int64_t> indices) {
    std::vector<std::size_t> rows(indices.size());
    std::iota(rows.begin(), rows.end(), 0);
    std::sort(rows.begin(), rows.end(),
              [&](std::size_t one, std::size_t other) { return indices[one] < indices[other]; });
    return rows;
  }

  /// Rows of one sample, or of adjacent samples in one shard. One read gets them all.
  struct Neighbours {
    RecordSplit::Place place;
    std::int64_t first, count;  ///< samples
    std::size_t begin, end;     ///< range of by_place()
  };

  std::vector<Neighbours> neighbours(std::span<const std::int64_t> indices,
                                     const std::vector<std::size_t>& rows, std::size_t most) const {
    std::vector<Neighbours> pieces;
    for (std::size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
      const std::int64_t first = indices[rows[begin]];
      const RecordSplit::Place place = records.find(first);
      const std::int64_t behind =
          std::min(place.shard->first() + place.shard->records(), first + static_cast<std::int64_t>(most));
      std::int64_t last = first;
      for (end = begin + 1; end < rows.size(); ++end) {
        const std::int64_t next = indices[rows[end]];
        if (next > last + 1 || next >= behind) break;
        last = next;
      }
      pieces.push_back(
          {.place = place, .first = first, .count = last - first + 1, .begin = begin, .end = end});
    }
    return pieces;
  }

  /// Reads records of a fixed layout.
  void read(std::span<const std::int64_t> indices, const Example& batch) const {
    const RowWriter writer(layout, batch);
    const std::size_t bytes = layout.bytes(),
                      most = std::max<std::size_t>(1, kMaxAtOnce / std::max<std::size_t>(bytes, 1));
    const Buffer buffer(std::min(most, indices.size()) * bytes);
    const std::vector<std::size_t> rows = by_place(indices);
    const std::vector<Neighbours> pieces = neighbours(indices, rows, most);
    const auto bytes_of = [&](const Neighbours& piece) {
      return static_cast<std::size_t>(piece.count) * bytes;
    };
    bool waits = false;
    for (auto piece = pieces.begin(); piece != pieces.end(); ++piece) {
      const AwaitedRead reading(bytes_of(*piece));
      piece->place.shard->read(piece->place.record, piece->count, buffer.room());
      if (!waits && (waits = reading.has_waited())) {
        for (auto later = piece + 1; later != pieces.end(); ++later)
          later->place.shard->will_read(later->place.record, 0, bytes_of(*later));
      }
      for (std::size_t i = piece->begin; i < piece->end; ++i) {
        const auto offset = static_cast<std::size_t>(indices[rows[i]] - piece->first) * bytes;
        writer.put({buffer.bytes.get() + offset, bytes}, rows[i]);
      }
    }
  }

  const RecordLayout layout;
  const bool fixed;
  const std::int64_t most_pixels;
  const RecordSplit records;
};

RecordDataset::RecordDataset(const PackedFiles& files, const std::string& split)
    : RecordDataset(files, read_manifest(files), split) {}

RecordDataset::RecordDataset(const PackedFiles& files, const PackedManifest& manifest,
                             const std::string& split, std::int64_t most_pixels)
    : state_(std::make_unique<const State>(files, manifest, split, most_pixels)) {}

RecordDataset::~RecordDataset() = default;

std::int64_t RecordDataset::size() const { return state_->records.size(); }

std::vector<std::int64_t> RecordDataset::shard_ends() const {
  std::vector<std::int64_t> ends;
  for (const auto& shard : state_->records.shards()) {
    if (shard->records() > 0) ends.push_back(shard->first() + shard->records());
  }
  return ends;
}

Example RecordDataset::get(std::int64_t index) const {
  state_->check_index(index);
  if (!state_->fixed) return state_->parse(index);
  const Example example = empty_example(state_->layout, std::nullopt);
  state_->read({&index, 1}, example);
  return example;
}

Example RecordDataset::get_batch(std::span<const std::int64_t> indices) const {
  for (const std::int64_t index : indices) state_->check_index(index);
  if (!state_->fixed) return Dataset::get_batch(indices);
  Example batch = empty_example(state_->layout, static_cast<std::int64_t>(indices.size()));
  state_->read(indices, batch);
  return batch;
}

Fields RecordDataset::get_targets(std::span<const std::int64_t> indices) const {
  if (state_->fixed) return get_batch(indices).target;
  return stacked_targets(indices, [&](std::int64_t index) {
    state_->check_index(index);
    return state_->parse(index, {.inputs = false}).target;
  });
}

}  // namespace trireme::data
