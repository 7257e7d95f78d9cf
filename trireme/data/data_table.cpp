#include <array>
#include <filesystem>
#include <system_error>

#include "trireme/base/error.h"
#include "trireme/data/dataset.h"
#include "trireme/data/decorators.h"
#include "trireme/data/idx_dataset.h"
#include "trireme/data/internal/opening.h"
#include "trireme/data/synthetic_dataset.h"
#include "trireme/data/text_dataset.h"

namespace trireme::data {
namespace {
namespace fs = std::filesystem;

constexpr std::string_view kFashionFolder = "/usr/share/datasets/fashion-mnist";

struct Normalisation {
  double mean, std;
};

/// FILE or FILE.gz, whichever is there.
fs::path find_idx(const fs::path& folder, const std::string& name, const std::string& advice) {
  for (const fs::path& path : {folder / name, folder / (name + ".gz")}) {
    std::error_code ignored;
    if (fs::exists(path, ignored)) return path;
  }
  throw DataError(text("no ", name, " or ", name, ".gz in ", folder.string(), "; ", advice));
}

std::shared_ptr<const Dataset> open_split(const fs::path& folder, const std::string& prefix,
                                          const Normalisation& normalisation, const std::string& advice) {
  return std::make_shared<IdxDataset>(
      IdxDatasetOptions{.images = find_idx(folder, prefix + "-images-idx3-ubyte", advice),
                        .labels = find_idx(folder, prefix + "-labels-idx1-ubyte", advice),
                        .num_classes = 10,
                        .mean = normalisation.mean,
                        .std = normalisation.std});
}

/// The training images with the augmentations of the options; `black` is how these images say black.
void augment(DataSource& source, const Opening& opening, double black) {
  const DataOptions& options = opening.options;
  if (options.augment.empty()) return;
  const ImageSize size = {source.input_shape[1], source.input_shape[2]};
  source.train = std::make_shared<TransformedDataset>(
      indexed(source.train),
      make_augmentations(options.augment,
                         {.size = size, .crop_padding = options.crop_padding, .fill = black}),
      opening.seed);
}

DataSource open_idx_family(const Opening& opening, const fs::path& folder, const Normalisation& normalisation,
                           const std::string& advice) {
  DataSource source;
  source.name = opening.options.name;
  source.train = open_split(folder, "train", normalisation, advice);
  source.test = open_split(folder, "t10k", normalisation, advice);
  source.num_classes = 10;
  const auto shape = [](const Dataset& split) { return split.get(0).input->sizes().vec(); };
  source.input_shape = shape(*indexed(source.train));
  if (shape(*source.test) != source.input_shape) {
    throw DataError(text("the training and test images in ", folder.string(), " differ in size"));
  }
  augment(source, opening, -normalisation.mean / normalisation.std);
  return source;
}

DataSource open_fashion_mnist(const Opening& opening) {
  const DataOptions& options = opening.options;
  const fs::path folder = options.path.empty() ? fs::path(kFashionFolder) : fs::path(options.path);
  return open_idx_family(opening, folder, {.mean = 0.2860, .std = 0.3530},
                         "install Debian's package dataset-fashion-mnist, or set data.path to the folder of "
                         "Fashion-MNIST's idx files");
}

DataSource open_mnist(const Opening& opening) {
  const DataOptions& options = opening.options;
  require(!options.path.empty(),
          "mnist comes with no Debian package: set data.path to the folder of its idx files");
  return open_idx_family(opening, options.path, {.mean = 0.1307, .std = 0.3081},
                         "set data.path to the folder of MNIST's idx files");
}

DataSource open_synthetic(const Opening& opening) {
  const DataOptions& options = opening.options;
  const auto split = [](std::int64_t num_samples, std::uint64_t number) {
    return std::make_shared<SyntheticDataset>(SyntheticOptions{.num_samples = num_samples, .split = number});
  };
  DataSource source = {.name = options.name,
                       .train = split(4096, 0),
                       .test = split(1024, 1),
                       .input_shape = {1, 28, 28},
                       .num_classes = 10};
  augment(source, opening, /*black=*/0);
  return source;
}

DataSource open_text(const Opening& opening) {
  const DataOptions& options = opening.options;
  require(options.augment.empty(), "data.augment is for images; leave it out with data.name = \"text\"");
  require(!options.path.empty(), "data.name = \"text\" needs data.path, the file with the text");
  const auto text_of_file = std::make_shared<const EncodedText>(options.path);
  const std::int64_t size = text_of_file->size(), split = size * 9 / 10;
  if (size - split <= options.block) {
    throw DataError(text(options.path, " has ", size, " characters; with data.block = ", options.block,
                         " at least ", 10 * (options.block + 1),
                         " are needed, a tenth of them for validation"));
  }
  const auto part = [&](const TextRange& range) {
    return std::make_shared<TextDataset>(text_of_file, range);
  };
  return {.name = options.name,
          .train = part({.begin = 0, .end = split, .block = options.block}),
          // Every character once.
          .test = part({.begin = split, .end = size, .block = options.block, .stride = options.block}),
          .input_shape = {options.block},
          .num_classes = static_cast<std::int64_t>(text_of_file->vocabulary().size()),
          .targets_per_sample = options.block,
          .held_out = "validation"};
}

struct DataRow {
  std::string_view name;
  DataSource (*open)(const Opening&);
};

constexpr std::array<DataRow, 8> kDataTable = {{
    {"csv", open_csv},
    {"fashion_mnist", open_fashion_mnist},
    {"image_folder", open_image_folder},
    {"mnist", open_mnist},
    {"numpy", open_numpy},
    {"synthetic", open_synthetic},
    {"text", open_text},
    {"webdataset", open_webdataset},
}};

}  // namespace

DataSource open_data(const DataOptions& options, std::uint64_t seed, const Log& log) {
  for (const DataRow& row : kDataTable) {
    if (row.name == options.name) return row.open({.options = options, .seed = seed, .log = log});
  }
  throw InvalidArgument(text("unknown data set '", options.name, "'", suggest(options.name, data_names())));
}

std::vector<std::string> data_names() {
  std::vector<std::string> names;
  for (const DataRow& row : kDataTable) names.emplace_back(row.name);
  return names;
}

}  // namespace trireme::data
