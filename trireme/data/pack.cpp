#include "trireme/data/pack.h"

#include "trireme/base/error.h"
#include "trireme/data/internal/packed_manifest.h"
#include "trireme/data/internal/shard_set.h"

namespace trireme::data {
namespace {

/// A dim that was assumed constant differs between samples: all shards have to be written again.
struct LayoutChanged {};

RecordLayout first_layout(const Packable& what) {
  RecordLayout layout = layout_of(indexed(what.source.train)->get(0));
  const bool has_input = !layout.fields.front().is_target && layout.fields.front().dtype == at::kByte;
  require(has_input || (!what.normalised && !what.encoded),
          "only samples whose first field is bytes can be normalised or decoded when they are read");
  if (what.normalised) layout.fields.front().normalised = what.normalised;
  if (what.encoded) {
    layout.fields.front().form = FieldForm::kImage;
    layout.fields.front().shape = {-1};
  }
  return layout;
}

PackedSplit write_split(const ShardSet& shards, const std::string& name, const Dataset& samples,
                        RecordLayout& layout, const PackOptions& options) {
  constexpr std::int64_t kEvery = 512;
  std::int64_t next = 0;
  return shards.write(name, [&](std::string& record) {
    if (options.progress && (next % kEvery == 0 || next == samples.size()))
      options.progress(name, next, samples.size());
    if (next == samples.size()) return false;
    const Example sample = samples.get(next);
    if (widen(layout, sample, next++)) throw LayoutChanged();
    append_record(layout, sample, record);
    return true;
  });
}

void check(const Dataset* samples) {
  if (samples == nullptr) return;
  require(samples->size() > 0, "there are no samples to pack");
  require(samples->in_epoch(0) == nullptr,
          "samples that vary from epoch to epoch cannot be packed: pack what they are made of, and change it "
          "when "
          "it is read");
}

}  // namespace

PackedSize pack(const Packable& what, const PackOptions& options) {
  const DataSource& source = what.source;
  require(source.train != nullptr, "there are no training samples to pack");
  const auto train = indexed(source.train);
  check(train.get());
  check(source.test.get());
  PackedManifest manifest{.source = source.name,
                          .source_path = what.path,
                          .input_shape = source.input_shape,
                          .num_classes = source.num_classes,
                          .targets_per_sample = source.targets_per_sample,
                          .held_out = source.held_out,
                          .classes = what.classes,
                          .black = what.black,
                          .layout = first_layout(what)};
  ShardSet shards(options, source.name);
  for (bool written = false; !written;) {
    try {
      manifest.train = write_split(shards, "train", *train, manifest.layout, options);
      if (source.test) manifest.test = write_split(shards, "test", *source.test, manifest.layout, options);
      written = true;
    } catch (const LayoutChanged&) {
      shards.start_over();
    }
  }
  shards.finish(manifest);
  return size_of(manifest);
}

}  // namespace trireme::data
