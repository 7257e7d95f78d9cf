#include <algorithm>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/data/content_digest.h"
#include "trireme/data/csv_dataset.h"
#include "trireme/data/internal/opening.h"
#include "trireme/data/internal/remote_files.h"
#include "trireme/data/internal/shard_paths.h"
#include "trireme/data/numpy_dataset.h"

namespace trireme::data {
namespace {
namespace fs = std::filesystem;

std::string digest_of(const std::vector<NumpyArray>& arrays) {
  ContentDigest digest;
  for (const NumpyArray& array : arrays) digest.add(array.name).add(*array.source, array.offset, array.size);
  return digest.text();
}

/// The two splits, or one split with a held-out tenth.
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

/// Arrays of an archive, or of a folder of .npy files. A split may be such a folder.
std::vector<NumpyArray> arrays_in(const std::string& path, RemoteFiles& files) {
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

/// Splits that are folders of .npy files, or .npz files.
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

/// Number of classes; 0: the targets are numbers.
std::int64_t classes_of(const std::vector<std::shared_ptr<const NumpyDataset>>& splits,
                        const DataOptions& options) {
  const TargetMeaning meaning = target_meaning(options.target);
  if (meaning == TargetMeaning::kNumber) return 0;
  std::vector<ClassLabels> labels;
  for (const auto& split : splits) {
    if (meaning == TargetMeaning::kClass) split->check_class_target();
    labels.push_back(split->labels(options.ignored_labels));
  }
  std::vector<LabelledSplit> labelled;
  for (std::size_t i = 0; i < splits.size(); ++i)
    labelled.push_back(
        {labels[i], [split = splits[i]](std::int64_t index) { return split->label_name(index); }});
  return count_classes(labelled, options.num_classes);
}

CsvHeader csv_header(const std::string& header) {
  require(header == "auto" || header == "yes" || header == "no", "data.header = \"", header,
          "\"; expected auto, yes or no");
  return header == "auto" ? CsvHeader::kByContent : header == "yes" ? CsvHeader::kYes : CsvHeader::kNo;
}

CsvOptions csv_options(const DataOptions& options) {
  constexpr std::string_view kOfNumbers = "+-.0123456789\"\r\n";
  require(options.separator.size() == 1 && kOfNumbers.find(options.separator[0]) == std::string_view::npos,
          "data.separator = \"", options.separator,
          "\"; expected one character that is not part of a number");
  return {.columns = {.inputs = options.inputs, .targets = options.targets},
          .header = csv_header(options.header),
          .separator = options.separator[0],
          .target = target_meaning(options.target),
          .ignored_labels = options.ignored_labels};
}

/// One split of a CSV table.
struct CsvSplit {
  CsvTable table;
  std::string name;

  LabelledSplit labelled() const {
    return {.labels = table.labels,
            .name_of = [this](std::int64_t line) { return text(name, ", line ", line); }};
  }
};

CsvSplit read_split(const ByteSource& file, const CsvOptions& options) {
  return {.table = read_csv(file, options), .name = file.name()};
}

}  // namespace

DataSource open_csv(const Opening& opening) {
  const DataOptions& options = opening.options;
  const SplitPaths paths = find_splits(options, ".csv");
  RemoteFiles files(options, opening.log);
  CsvOptions csv = csv_options(options);
  const auto train_file = files.open(only(paths.train));
  const auto test_file = paths.test.empty() ? train_file : files.open(only(paths.test));
  std::vector<CsvSplit> splits = {read_split(*train_file, csv)};
  // The columns of the first split, by name: the second split may have them in another order.
  csv.columns = splits[0].table.columns;
  if (!paths.test.empty()) splits.push_back(read_split(*test_file, csv));
  const bool classes =
      std::ranges::all_of(splits, [](const CsvSplit& split) { return split.table.targets_are_classes; });
  std::int64_t num_classes = 0;
  if (classes) {
    std::vector<LabelledSplit> labelled;
    for (const CsvSplit& split : splits) labelled.push_back(split.labelled());
    num_classes = count_classes(labelled, options.num_classes);
  }
  std::vector<std::shared_ptr<const Dataset>> rows;
  for (CsvSplit& split : splits) {
    rows.push_back(std::make_shared<CsvDataset>(
        std::move(split.table), classes ? CsvDataset::Targets::kClasses : CsvDataset::Targets::kNumbers));
  }
  DataSource source = source_of(opening, paths, rows[0], rows.size() > 1 ? rows[1] : nullptr);
  source.train_digest = ContentDigest().add(*train_file).text();
  source.test_digest = ContentDigest().add(*test_file).text();
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
  RemoteFiles files(options, opening.log);
  const std::vector<NumpyArray> of_train = arrays_in(only(paths.train), files);
  const std::vector<NumpyArray> of_test = paths.test.empty() ? of_train : arrays_in(only(paths.test), files);
  std::vector<std::shared_ptr<const NumpyDataset>> splits = {
      std::make_shared<NumpyDataset>(of_train, fields)};
  if (!paths.test.empty()) splits.push_back(std::make_shared<NumpyDataset>(of_test, fields));
  DataSource source = source_of(opening, paths, splits[0], splits.size() > 1 ? splits[1] : nullptr);
  source.train_digest = digest_of(of_train);
  source.test_digest = digest_of(of_test);
  source.num_classes = classes_of(splits, options);
  return source;
}

}  // namespace trireme::data
