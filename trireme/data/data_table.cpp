#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>

#include "trireme/base/error.h"
#include "trireme/data/content_digest.h"
#include "trireme/data/dataset.h"
#include "trireme/data/decorators.h"
#include "trireme/data/idx_dataset.h"
#include "trireme/data/internal/opening.h"
#include "trireme/data/synthetic_dataset.h"
#include "trireme/data/text_dataset.h"
#include "trireme/data/tolerant.h"

namespace trireme::data {
namespace {
namespace fs = std::filesystem;

constexpr std::string_view kFashionFolder = "/usr/share/datasets/fashion-mnist";

/// Path of NAME or NAME.gz, whichever exists.
fs::path find_idx(const fs::path& folder, const std::string& name, const std::string& advice) {
  for (const fs::path& path : {folder / name, folder / (name + ".gz")}) {
    std::error_code ignored;
    if (fs::exists(path, ignored)) return path;
  }
  throw DataError(text("no ", name, " or ", name, ".gz in ", folder.string(), "; ", advice));
}

/// A data set of the MNIST family.
struct IdxFamily {
  fs::path folder;
  Normalisation normalisation;
  std::string advice;
  std::int64_t num_classes = 10;

  double black() const { return -normalisation.mean / normalisation.std; }
};

std::shared_ptr<const IdxDataset> open_split(const IdxFamily& family, const std::string& prefix) {
  return std::make_shared<IdxDataset>(
      IdxDatasetOptions{.images = find_idx(family.folder, prefix + "-images-idx3-ubyte", family.advice),
                        .labels = find_idx(family.folder, prefix + "-labels-idx1-ubyte", family.advice),
                        .num_classes = family.num_classes,
                        .normalisation = family.normalisation});
}

}  // namespace

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

namespace {

/// Digest of all labels and of evenly spaced images.
std::string digest_of(const IdxDataset& images) {
  constexpr std::int64_t kImages = 256;
  ContentDigest digest;
  digest.add(images.size()).add(images.height()).add(images.width());
  const std::int64_t distance = std::max<std::int64_t>(1, images.size() / kImages);
  for (std::int64_t i = 0; i < images.size(); ++i) {
    digest.add(images.label(i));
    if (i % distance != 0) continue;
    const std::span<const std::uint8_t> pixels = images.pixels(i);
    digest.add(std::string_view(reinterpret_cast<const char*>(pixels.data()), pixels.size()));
  }
  return digest.text();
}

using IdxView = std::shared_ptr<const Dataset> (*)(std::shared_ptr<const IdxDataset>);

DataSource open_idx_family(const Opening& opening, const IdxFamily& family, IdxView view) {
  const auto train = open_split(family, "train");
  const auto test = open_split(family, "t10k");
  if (train->height() != test->height() || train->width() != test->width())
    throw DataError(text("the training and test images in ", family.folder.string(), " differ in size"));
  return {.name = opening.options.name,
          .train = view(train),
          .test = view(test),
          .input_shape = {1, train->height(), train->width()},
          .num_classes = family.num_classes,
          .train_digest = digest_of(*train),
          .test_digest = digest_of(*test)};
}

DataSource open_normalised(const Opening& opening, const IdxFamily& family) {
  DataSource source = open_idx_family(opening, family, [](std::shared_ptr<const IdxDataset> images) {
    return std::shared_ptr<const Dataset>(std::move(images));
  });
  augment(source, opening, family.black());
  return source;
}

Packable packable_idx(const Opening& opening, const IdxFamily& family) {
  return {.source = open_idx_family(opening, family, pixels_of),
          .path = family.folder.string(),
          .normalised = family.normalisation,
          .black = family.black()};
}

/// MNIST and Fashion-MNIST have ten classes; other data sets in the format (EMNIST) have more.
std::int64_t classes_of_family(const DataOptions& options) {
  return options.num_classes == 0 ? 10 : options.num_classes;
}

IdxFamily fashion_mnist(const DataOptions& options) {
  return {.folder = options.path.empty() ? fs::path(kFashionFolder) : fs::path(options.path),
          .normalisation = {.mean = 0.2860, .std = 0.3530},
          .advice =
              "install Debian's package dataset-fashion-mnist, or set data.path to the folder of "
              "Fashion-MNIST's idx files",
          .num_classes = classes_of_family(options)};
}

IdxFamily mnist(const DataOptions& options) {
  require(!options.path.empty(),
          "mnist comes with no Debian package: set data.path to the folder of its idx files");
  return {.folder = options.path,
          .normalisation = {.mean = 0.1307, .std = 0.3081},
          .advice = "set data.path to the folder of MNIST's idx files",
          .num_classes = classes_of_family(options)};
}

DataSource open_fashion_mnist(const Opening& opening) {
  return open_normalised(opening, fashion_mnist(opening.options));
}

Packable packable_fashion_mnist(const Opening& opening) {
  return packable_idx(opening, fashion_mnist(opening.options));
}

DataSource open_mnist(const Opening& opening) { return open_normalised(opening, mnist(opening.options)); }

Packable packable_mnist(const Opening& opening) { return packable_idx(opening, mnist(opening.options)); }

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
  const std::string digest = ContentDigest().add(*open_file(options.path)).text();
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
          .held_out = "validation",
          .train_digest = digest,
          .test_digest = digest};
}

template <DataSource (*open)(const Opening&)>
Packable packable_as_it_is(const Opening& opening) {
  return {.source = open(opening)};
}

struct DataRow {
  std::string_view name;
  DataSource (*open)(const Opening&);
  Packable (*packable)(const Opening&);  ///< null: samples are not packed one by one
  bool has_columns = false;              ///< the columns' values alone do not say whether targets are classes
};

constexpr std::array<DataRow, 9> kDataTable = {{
    {"csv", open_csv, packable_as_it_is<open_csv>, true},
    {"fashion_mnist", open_fashion_mnist, packable_fashion_mnist},
    {"image_folder", open_image_folder, packable_image_folder},
    {"mnist", open_mnist, packable_mnist},
    {"numpy", open_numpy, packable_as_it_is<open_numpy>, true},
    {"packed", open_packed, nullptr},
    {"synthetic", open_synthetic, packable_as_it_is<open_synthetic>},
    {"text", open_text, nullptr},
    {"webdataset", open_webdataset, packable_as_it_is<open_webdataset>},
}};

const DataRow& row_of(const DataOptions& options) {
  for (const DataRow& row : kDataTable) {
    if (row.name == options.name) return row;
  }
  throw InvalidArgument(text("unknown data set '", options.name, "'", suggest(options.name, data_names())));
}

}  // namespace

DataSource open_data(const DataOptions& options, std::uint64_t seed, const Log& log) {
  DataSource source = row_of(options).open({.options = options, .seed = seed, .log = log});
  return with_retries(with_target_options(std::move(source), options), options, log);
}

Packable packable(const DataOptions& options, const Log& log) {
  const DataRow& row = row_of(options);
  require(row.packable != nullptr, "samples of data.name = \"", options.name, "\" are not packed one by one");
  DataOptions plain = options;
  plain.augment.clear();
  Packable found = row.packable({.options = plain, .log = log});
  found.source = with_retries(with_target_options(std::move(found.source), options), options, log);
  return found;
}

bool has_columns(const std::string& name) {
  const auto* row = std::ranges::find(kDataTable, std::string_view(name), &DataRow::name);
  return row != kDataTable.end() && row->has_columns;
}

std::vector<std::string> data_names() {
  std::vector<std::string> names;
  for (const DataRow& row : kDataTable) names.emplace_back(row.name);
  return names;
}

}  // namespace trireme::data
