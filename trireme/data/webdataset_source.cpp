#include <algorithm>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/data/internal/opening.h"
#include "trireme/data/internal/remote_files.h"
#include "trireme/data/internal/shard_paths.h"
#include "trireme/data/tar_dataset.h"

namespace trireme::data {
namespace {

std::shared_ptr<const TarDataset> open_shards(const std::vector<std::string>& paths, RemoteFiles& files,
                                              const Opening& opening) {
  const DataOptions& options = opening.options;
  std::vector<std::shared_ptr<const ByteSource>> shards;
  for (const std::string& path : paths) shards.push_back(files.open(path));
  return std::make_shared<TarDataset>(
      std::move(shards),
      TarDatasetOptions{.inputs = options.inputs,
                        .targets = options.targets,
                        .most_pixels = options.most_pixels,
                        .index_folder = options.cache.empty()
                                            ? std::filesystem::path()
                                            : std::filesystem::path(options.cache) / "index"},
      opening.log);
}

/// Number of classes; 0: targets are not classes, or are used as numbers.
std::int64_t classes_of(const std::vector<std::shared_ptr<const TarDataset>>& splits,
                        const DataOptions& options) {
  if (target_meaning(options.target) == TargetMeaning::kNumber) return 0;
  std::vector<ClassLabels> labels;
  for (const auto& split : splits) labels.push_back(split->labels(options.ignored_labels));
  std::vector<LabelledSplit> labelled;
  for (std::size_t i = 0; i < splits.size(); ++i)
    labelled.push_back(
        {labels[i], [split = splits[i]](std::int64_t sample) { return split->name_of(sample); }});
  return count_classes(labelled, options.num_classes);
}

}  // namespace

DataSource open_webdataset(const Opening& opening) {
  const DataOptions& options = opening.options;
  const SplitPaths paths = find_splits(options, ".tar");
  RemoteFiles files(options, opening.log);
  const auto train = open_shards(paths.train, files, opening);
  ImageSplits splits = {.train = train, .test = nullptr, .held_out = paths.held_out};
  std::vector<std::shared_ptr<const TarDataset>> labelled = {train};
  const std::string train_digest = train->content_digest();
  std::string test_digest = train_digest;
  if (paths.test.empty()) {
    const HeldOut parts = hold_out_tenth(train, options.path);
    splits.train = parts.train;
    splits.test = parts.test;
  } else {
    const auto test = open_shards(paths.test, files, opening);
    labelled.push_back(test);
    splits.test = test;
    test_digest = test->content_digest();
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
  source.num_classes = classes_of(labelled, options);
  source.train_digest = train_digest;
  source.test_digest = test_digest;
  return source;
}

}  // namespace trireme::data
