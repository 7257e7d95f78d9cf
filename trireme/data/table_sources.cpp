#include <algorithm>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/data/csv_dataset.h"
#include "trireme/data/internal/far_files.h"
#include "trireme/data/internal/opening.h"
#include "trireme/data/internal/shard_paths.h"
#include "trireme/data/numpy_dataset.h"

namespace trireme::data {
namespace {
namespace fs = std::filesystem;

/// The two splits, or the one of which a part is held out.
DataSource source_of(const Opening& opening, const SplitPaths& paths, std::shared_ptr<const Dataset> train,
                     std::shared_ptr<const Dataset> test) {
  const DataOptions& options = opening.options;
  require(options.augment.empty(), "data.augment is for images; leave it out with data.name = \"",
          options.name, "\"");
  DataSource source{.name = options.name, .train = train, .test = test, .held_out = paths.held_out};
  if (!test) {
    const HeldOut parts = hold_out_tenth(train, options.path);
    source.train = parts.train, source.test = parts.test;
  }
  if (const Example first = train->get(0); first.input.size() == 1)
    source.input_shape = first.input->sizes().vec();
  return source;
}

const std::string& only(const std::vector<std::string>& paths) {
  require(paths.size() == 1, "one file holds a split, and ", paths.size(), " are named, the first ",
          paths[0]);
  return paths[0];
}

/// Arrays of an archive, or of the folder's files. A part of a folder may be a folder.
std::vector<NumpyArray> arrays_in(const std::string& path, FarFiles& files) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return arrays_of_npz(files.open(path));
  std::vector<NumpyArray> arrays;
  for (const auto& entry : fs::directory_iterator(path, ignored)) {
    if (entry.path().extension() != ".npy") continue;
    const auto source = files.open(entry.path().string());
    arrays.push_back(
        {.name = entry.path().stem().string(), .source = source, .offset = 0, .size = source->size()});
  }
  std::ranges::sort(arrays, {}, &NumpyArray::name);
  return arrays;
}

/// Folders of .npy files, or .npz files.
SplitPaths numpy_splits(const DataOptions& options) {
  std::error_code ignored;
  const fs::path root = options.path;
  if (!fs::is_directory(root, ignored)) return find_splits(options, ".npz");
  SplitPaths paths;
  const bool parts = fs::is_directory(root / "train", ignored);
  if (!parts && fs::exists(root / "train.npz", ignored)) return find_splits(options, ".npz");
  paths.train = {(parts ? root / "train" : root).string()};
  for (const char* name : {"val", "validation", "test"}) {
    if (!parts || !paths.test.empty() || !fs::is_directory(root / name, ignored)) continue;
    paths.test = {(root / name).string()};
    paths.held_out = name == std::string_view("test") ? "test" : "validation";
  }
  if (!options.test_path.empty()) paths.test = {options.test_path}, paths.held_out = "test";
  return paths;
}

}  // namespace

DataSource open_csv(const Opening& opening) {
  const DataOptions& options = opening.options;
  const SplitPaths paths = find_splits(options, ".csv");
  FarFiles files(options, opening.log);
  CsvTable train =
      read_csv(*files.open(only(paths.train)), {.inputs = options.inputs, .targets = options.targets});
  CsvTable test;
  // The columns of the first split, by name: in the second they may stand in another order.
  if (!paths.test.empty()) test = read_csv(*files.open(only(paths.test)), train.columns);
  const bool classes = train.targets_are_classes && (paths.test.empty() || test.targets_are_classes);
  const auto targets = classes ? CsvDataset::Targets::kClasses : CsvDataset::Targets::kNumbers;
  const auto train_rows = std::make_shared<CsvDataset>(std::move(train), targets);
  std::int64_t num_classes = train_rows->num_classes();
  std::shared_ptr<const CsvDataset> test_rows;
  if (!paths.test.empty()) {
    test_rows = std::make_shared<CsvDataset>(std::move(test), targets);
    num_classes = std::max(num_classes, test_rows->num_classes());
  }
  DataSource source = source_of(opening, paths, train_rows, test_rows);
  source.num_classes = num_classes;
  return source;
}

DataSource open_numpy(const Opening& opening) {
  const DataOptions& options = opening.options;
  require(!options.path.empty(),
          "data.name = \"numpy\" needs data.path, a .npz file or a folder of .npy files");
  NumpyDatasetOptions fields;
  if (!options.inputs.empty()) fields.inputs = options.inputs;
  if (!options.targets.empty()) fields.targets = options.targets;
  const SplitPaths paths = numpy_splits(options);
  FarFiles files(options, opening.log);
  const auto train = std::make_shared<NumpyDataset>(arrays_in(only(paths.train), files), fields);
  std::int64_t num_classes = train->num_classes();
  std::shared_ptr<const NumpyDataset> test;
  if (!paths.test.empty()) {
    test = std::make_shared<NumpyDataset>(arrays_in(only(paths.test), files), fields);
    num_classes = std::max(num_classes, test->num_classes());
  }
  DataSource source = source_of(opening, paths, train, test);
  source.num_classes = num_classes;
  return source;
}

}  // namespace trireme::data
