#include <filesystem>
#include <system_error>

#include "trireme/base/error.h"
#include "trireme/data/decorators.h"
#include "trireme/data/image_folder.h"
#include "trireme/data/internal/opening.h"

namespace trireme::data {
namespace {
namespace fs = std::filesystem;

struct Splits {
  ImageSplits images;
  std::vector<std::string> classes;
};

/// Every tenth image is held out where the folder has no split of its own.
Splits split_folder(const std::shared_ptr<const ImageFolder>& whole) {
  std::vector<std::int64_t> train, held_out;
  for (std::int64_t i = 0; i < whole->size(); ++i) (i % 10 == 9 ? held_out : train).push_back(i);
  if (held_out.empty()) {
    throw DataError(text("a folder of ", whole->size(),
                         " images cannot be split: ten at least are needed, or folders train and val"));
  }
  return {.images = {.train = std::make_shared<SubsetDataset>(whole, train),
                     .test = std::make_shared<SubsetDataset>(whole, held_out),
                     .held_out = "validation"},
          .classes = whole->classes()};
}

Splits open_split_folders(const fs::path& root, const std::string& held_out, Undecodable undecodable,
                          const Log& log) {
  const auto train = std::make_shared<ImageFolder>(root / "train", undecodable, log);
  const auto test = std::make_shared<ImageFolder>(root / held_out, undecodable, log);
  if (train->classes() != test->classes()) {
    throw DataError(text("the classes in ", (root / "train").string(), " (", join(train->classes()),
                         ") are not those in ", (root / held_out).string(), " (", join(test->classes()),
                         ")"));
  }
  return {.images = {.train = train, .test = test, .held_out = held_out == "test" ? "test" : "validation"},
          .classes = train->classes()};
}

Splits open_folder(const fs::path& root, Undecodable undecodable, const Log& log) {
  std::error_code ignored;
  const auto has = [&](const char* name) { return fs::is_directory(root / name, ignored); };
  if (!has("train")) return split_folder(std::make_shared<ImageFolder>(root, undecodable, log));
  for (const char* held_out : {"val", "validation", "test"}) {
    if (has(held_out)) return open_split_folders(root, held_out, undecodable, log);
  }
  throw DataError(text(root.string(), " has a folder train, and beside it none of val, validation, test"));
}

}  // namespace

DataSource images_brought_to_size(const ImageSplits& splits, const Opening& opening) {
  const DataOptions& options = opening.options;
  // Means and deviations of ImageNet's training images, with which published models were trained.
  const auto normalized = normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225});
  const ImageSize size = {options.image_size, options.image_size};
  Transforms changes =
      make_augmentations(options.augment, {.size = size, .crop_padding = options.crop_padding});
  // The augmentation "resized_crop" brings images to their size itself, any other needs them to have it.
  const bool brings_to_size = !options.augment.empty() && options.augment.front() == "resized_crop";
  if (!brings_to_size) changes.insert(changes.begin(), resize_and_crop(size));
  changes.push_back(normalized);
  DataSource source;
  source.name = options.name;
  source.train = std::make_shared<TransformedDataset>(splits.train, changes, opening.seed);
  source.test = std::make_shared<TransformedDataset>(
      splits.test, Transforms{resize_and_crop(size), normalized}, opening.seed);
  source.input_shape = {3, options.image_size, options.image_size};
  source.held_out = splits.held_out;
  return source;
}

DataSource open_image_folder(const Opening& opening) {
  const DataOptions& options = opening.options;
  require(!options.path.empty(), "data.name = \"image_folder\" needs data.path, the folder with the images");
  const auto undecodable = options.undecodable == "skip" ? Undecodable::kSkip : Undecodable::kError;
  const Splits splits = open_folder(options.path, undecodable, opening.log);
  DataSource source = images_brought_to_size(splits.images, opening);
  source.num_classes = static_cast<std::int64_t>(splits.classes.size());
  return source;
}

}  // namespace trireme::data
