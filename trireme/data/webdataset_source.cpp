#include <algorithm>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/data/internal/far_files.h"
#include "trireme/data/internal/opening.h"
#include "trireme/data/internal/shard_paths.h"
#include "trireme/data/tar_dataset.h"

namespace trireme::data {
namespace {

std::shared_ptr<const TarDataset> open_shards(const std::vector<std::string>& paths, FarFiles& files,
                                              const Opening& opening) {
  const DataOptions& options = opening.options;
  std::vector<std::shared_ptr<const ByteSource>> shards;
  for (const std::string& path : paths) shards.push_back(files.open(path));
  return std::make_shared<TarDataset>(
      std::move(shards),
      TarDatasetOptions{.inputs = options.inputs,
                        .targets = options.targets,
                        .index_folder = options.cache.empty()
                                            ? std::filesystem::path()
                                            : std::filesystem::path(options.cache) / "index"},
      opening.log);
}

}  // namespace

DataSource open_webdataset(const Opening& opening) {
  const DataOptions& options = opening.options;
  const SplitPaths paths = find_splits(options, ".tar");
  FarFiles files(options, opening.log);
  const auto train = open_shards(paths.train, files, opening);
  ImageSplits splits = {.train = train, .test = nullptr, .held_out = paths.held_out};
  std::int64_t num_classes = train->num_classes();
  if (paths.test.empty()) {
    const HeldOut parts = hold_out_tenth(train, options.path);
    splits.train = parts.train;
    splits.test = parts.test;
  } else {
    const auto test = open_shards(paths.test, files, opening);
    num_classes = std::max(num_classes, test->num_classes());
    splits.test = test;
  }
  DataSource source;
  if (train->holds_images()) {
    source = images_brought_to_size(splits, opening);
  } else {
    require(options.augment.empty(), "data.augment is for images; leave it out, these samples have none");
    source.name = options.name;
    source.train = splits.train;
    source.test = splits.test;
    source.held_out = splits.held_out;
    const Example first = train->get(0);
    if (first.input.size() == 1 && !train->sizes_vary()) source.input_shape = first.input->sizes().vec();
  }
  source.num_classes = num_classes;
  return source;
}

}  // namespace trireme::data
