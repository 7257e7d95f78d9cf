#include <algorithm>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/data/content_digest.h"
#include "trireme/data/internal/opening.h"
#include "trireme/data/internal/packed_manifest.h"
#include "trireme/data/internal/remote_files.h"
#include "trireme/data/record_dataset.h"
#include "trireme/data/token_dataset.h"

namespace trireme::data {
namespace {

bool holds_images(const RecordLayout& layout) {
  return std::any_of(layout.fields.begin(), layout.fields.end(),
                     [](const FieldLayout& field) { return field.form == FieldForm::kImage; });
}

/// Digest of the shards, each of which has a checksum of its contents.
std::string digest_of(const PackedSplit& split) {
  ContentDigest digest;
  digest.add(split.samples);
  for (const ShardSummary& shard : split.shards)
    digest.add(shard.records)
        .add(static_cast<std::int64_t>(shard.bytes))
        .add(std::int64_t{shard.index_crc32c});
  return digest.text();
}

DataSource open_packed_text(const Opening& opening, const PackedFiles& files,
                            const PackedManifest& manifest) {
  const DataOptions& options = opening.options;
  require(options.augment.empty(), files.name(), " holds a text: leave data.augment out");
  const auto split = [&](const char* name, std::int64_t stride) {
    return std::make_shared<TokenDataset>(files, manifest, name,
                                          TokenBlocks{.block = options.block, .stride = stride});
  };
  return {.name = options.name,
          .train = split("train", 1),
          // Every token once.
          .test = split("test", options.block),
          .input_shape = {options.block},
          .num_classes = manifest.num_classes,
          .targets_per_sample = options.block,
          .held_out = manifest.held_out};
}

DataSource open_packed_splits(const Opening& opening, const PackedFiles& files,
                              const PackedManifest& manifest) {
  const DataOptions& options = opening.options;
  const auto split = [&](const char* name) -> std::shared_ptr<const Dataset> {
    if (name == std::string_view("test") && !manifest.test) return nullptr;
    return std::make_shared<RecordDataset>(files, manifest, name, options.most_pixels);
  };
  if (manifest.tokens) return open_packed_text(opening, files, manifest);
  DataSource source;
  if (holds_images(manifest.layout)) {
    source = images_brought_to_size(
        {.train = split("train"), .test = split("test"), .held_out = manifest.held_out}, opening);
  } else {
    source.name = options.name;
    source.train = split("train");
    source.test = split("test");
    source.input_shape = manifest.input_shape;
    source.held_out = manifest.held_out;
    const bool are_images = source.input_shape.size() == 3;
    require(options.augment.empty() || are_images, files.name(), " holds no images: leave data.augment out");
    augment(source, opening, manifest.black);
  }
  source.num_classes = manifest.num_classes;
  source.targets_per_sample = manifest.targets_per_sample;
  return source;
}

}  // namespace

DataSource open_packed(const Opening& opening) {
  const DataOptions& options = opening.options;
  require(!options.path.empty(),
          "data.name = \"packed\" needs data.path, the folder that `trireme data pack` has made, or its URL");
  const PackedFiles files(options.path, RemoteFiles(options, opening.log).cache(),
                          {.private_redirects = options.private_redirects});
  const PackedManifest manifest = read_manifest(files);
  DataSource source = open_packed_splits(opening, files, manifest);
  source.train_digest = digest_of(manifest.train);
  if (manifest.test) source.test_digest = digest_of(*manifest.test);
  return source;
}

}  // namespace trireme::data
