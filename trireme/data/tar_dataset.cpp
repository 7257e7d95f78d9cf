#include "trireme/data/tar_dataset.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/printable.h"
#include "trireme/data/content_digest.h"
#include "trireme/data/internal/sample_fields.h"
#include "trireme/data/internal/stacked_targets.h"
#include "trireme/data/internal/tar_index.h"

namespace trireme::data {
namespace {

/// One read gets all members of a sample if the unused bytes in between are at most this many.
constexpr std::int64_t kGapBytes = 65536;

struct TarShard {
  std::shared_ptr<const ByteSource> bytes;
  TarIndex index;
  std::int64_t end = 0;  ///< samples of the shards up to this one
};

}  // namespace

struct TarDataset::State {
  struct Place {
    const TarShard& shard;
    std::int64_t sample;
  };
  Place find(std::int64_t index) const {
    const std::int64_t size = shards.back().end;
    require(index >= 0 && index < size, "sample ", index, " of ", size, " was asked for");
    const auto found = std::ranges::upper_bound(shards, index, {}, &TarShard::end);
    return {*found, index - (found->end - found->index.size())};
  }

  std::size_t number_of(const std::string& field) const {
    const std::vector<std::string>& fields = shards[0].index.fields();
    const auto found = std::ranges::find(fields, field);
    require(found != fields.end(), "samples of ", shards[0].bytes->name(), " have no field '", field, "'",
            suggest(field, fields));
    check_field_name(field);
    return static_cast<std::size_t>(found - fields.begin());
  }

  void choose(const TarDatasetOptions& options) {
    const std::vector<std::string>& fields = shards[0].index.fields();
    for (const std::string& field : options.targets) targets.push_back(number_of(field));
    if (options.targets.empty()) {
      const auto cls = std::ranges::find_if(fields, is_class_field);
      if (cls != fields.end()) targets.push_back(static_cast<std::size_t>(cls - fields.begin()));
    }
    for (const std::string& field : options.inputs) inputs.push_back(number_of(field));
    if (!options.inputs.empty()) return;
    const bool images = std::ranges::any_of(fields, is_image_field);
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (images ? is_image_field(fields[i]) : std::ranges::find(targets, i) == targets.end())
        inputs.push_back(number_of(fields[i]));
    }
  }

  bool varies(std::size_t field) const {
    const std::string& name = shards[0].index.fields()[field];
    if (is_class_field(name)) return false;
    const std::int64_t size = shards[0].index.extent(0, field).size;
    for (const TarShard& shard : shards) {
      for (std::int64_t i = 0; i < shard.index.size(); ++i) {
        if (shard.index.extent(i, field).size != size) return true;
      }
    }
    return is_image_field(name);
  }

  /// Reads the targets, and only the inputs that are requested.
  Example read(std::int64_t index, const std::vector<std::size_t>& wanted_inputs) const {
    const Place place = find(index);
    std::int64_t begin = place.shard.bytes->size(), end = 0, needed = 0;
    for (const std::vector<std::size_t>* fields : {&wanted_inputs, &targets}) {
      for (const std::size_t field : *fields) {
        const Extent& extent = place.shard.index.extent(place.sample, field);
        begin = std::min(begin, extent.offset);
        end = std::max(end, extent.offset + extent.size);
        needed += extent.size;
      }
    }
    Piece piece = {.content = {}, .begin = begin};
    if (end - begin <= needed + kGapBytes) piece.content = read_text(*place.shard.bytes, begin, end - begin);
    return {decode(place, wanted_inputs, piece), decode(place, targets, piece)};
  }

  /// Bytes of a shard from `begin` on. Empty: members are read one by one.
  struct Piece {
    std::string content;
    std::int64_t begin;
  };

  Fields decode(const Place& place, const std::vector<std::size_t>& numbers, const Piece& piece) const {
    const TarIndex& index = place.shard.index;
    Fields fields;
    for (const std::size_t number : numbers) {
      const Extent& extent = index.extent(place.sample, number);
      const std::string& name = index.fields()[number];
      std::string alone;
      if (piece.content.empty()) alone = read_text(*place.shard.bytes, extent.offset, extent.size);
      const std::string_view bytes = piece.content.empty()
                                         ? std::string_view(alone)
                                         : std::string_view(piece.content)
                                               .substr(static_cast<std::size_t>(extent.offset - piece.begin),
                                                       static_cast<std::size_t>(extent.size));
      try {
        fields.add(numbers.size() == 1 ? "" : name, decode_field(name, bytes, most_pixels));
      } catch (const DataError& reason) {
        throw DataError(text("cannot decode ", place.shard.bytes->name(), " at ", extent.offset, ", member '",
                             printable(index.key(place.sample)), '.', printable(name), "': ", reason.what()));
      }
    }
    return fields;
  }

  std::vector<TarShard> shards;
  std::vector<std::size_t> inputs, targets;  ///< numbers of fields
  bool sizes_vary = false;
  std::int64_t most_pixels = kMaxPixels;
};

TarDataset::TarDataset(std::vector<std::shared_ptr<const ByteSource>> shards,
                       const TarDatasetOptions& options, const Log& log)
    : state_(std::make_unique<State>()) {
  require(!shards.empty(), "a data set of tar archives needs one at least");
  std::int64_t end = 0;
  for (auto& bytes : shards) {
    TarIndex index = index_of(*bytes, options.index_folder, log);
    if (!state_->shards.empty() && index.fields() != state_->shards[0].index.fields()) {
      throw DataError(text("samples of ", bytes->name(), " have ", printable(join(index.fields()), 200),
                           ", and those of ", state_->shards[0].bytes->name(), " ",
                           printable(join(state_->shards[0].index.fields()), 200),
                           "; all samples have the same fields"));
    }
    end += index.size();
    state_->shards.push_back({.bytes = std::move(bytes), .index = std::move(index), .end = end});
  }
  state_->most_pixels = options.most_pixels;
  state_->choose(options);
  const auto varies = [&](std::size_t field) { return state_->varies(field); };
  state_->sizes_vary =
      std::ranges::any_of(state_->inputs, varies) || std::ranges::any_of(state_->targets, varies);
}

TarDataset::~TarDataset() = default;

std::int64_t TarDataset::size() const { return state_->shards.back().end; }

bool TarDataset::sizes_vary() const { return state_->sizes_vary; }

bool TarDataset::holds_images() const {
  return state_->inputs.size() == 1 && is_image_field(state_->shards[0].index.fields()[state_->inputs[0]]);
}

ClassLabels TarDataset::labels(const std::vector<std::int64_t>& ignored) const {
  ClassLabels labels(ignored);
  const bool is_class =
      state_->targets.size() == 1 && is_class_field(state_->shards[0].index.fields()[state_->targets[0]]);
  if (!is_class) return labels;
  for (const TarShard& shard : state_->shards) {
    const std::int64_t first = shard.end - shard.index.size();
    for (const TarIndex::Label& found : shard.index.labels())
      labels.add(found.label, first + found.first_sample, found.samples);
  }
  return labels;
}

std::string TarDataset::content_digest() const {
  ContentDigest digest;
  for (const TarShard& shard : state_->shards) {
    const TarIndex& index = shard.index;
    for (const std::string& field : index.fields()) digest.add(field);
    for (std::int64_t i = 0; i < index.size(); ++i) {
      digest.add(index.key(i));
      for (std::size_t field = 0; field < index.fields().size(); ++field)
        digest.add(index.extent(i, field).size);
    }
  }
  return digest.text();
}

std::string TarDataset::name_of(std::int64_t index) const {
  const State::Place place = state_->find(index);
  return text(place.shard.bytes->name(), ", sample '", printable(place.shard.index.key(place.sample)), "'");
}

Example TarDataset::get(std::int64_t index) const { return state_->read(index, state_->inputs); }

Fields TarDataset::get_targets(std::span<const std::int64_t> indices) const {
  return stacked_targets(indices, [&](std::int64_t index) { return state_->read(index, {}).target; });
}

std::vector<std::int64_t> TarDataset::shard_ends() const {
  std::vector<std::int64_t> ends;
  for (const TarShard& shard : state_->shards) {
    if (ends.empty() || shard.end > ends.back()) ends.push_back(shard.end);
  }
  return ends;
}

}  // namespace trireme::data
