#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <span>
#include <system_error>

#include "trireme/base/error.h"
#include "trireme/data/decorators.h"
#include "trireme/data/image_folder.h"
#include "trireme/data/internal/opening.h"
#include "trireme/data/kept_samples.h"

namespace trireme::data {
namespace {
namespace fs = std::filesystem;

/// How images of a folder are read: decoded, or as the bytes of their files.
using View = std::shared_ptr<const Dataset> (*)(std::shared_ptr<const ImageFolder>);

std::shared_ptr<const Dataset> decoded_images(std::shared_ptr<const ImageFolder> images) { return images; }

struct FolderOptions {
  Undecodable undecodable;
  const Log& log;
  std::int64_t most_pixels;
  View view;
};

struct Splits {
  ImageSplits images;
  std::vector<std::string> classes, notes;
  std::string train_digest, test_digest;
};

std::vector<std::string> notes_of(const std::vector<std::shared_ptr<const ImageFolder>>& folders) {
  std::vector<std::string> notes;
  for (const auto& folder : folders) {
    if (!folder->left_out().empty()) notes.push_back(folder->left_out());
  }
  return notes;
}

/// Rejects folders that have names of splits, such as "Train" and "valid", instead of classes.
void check_classes(const fs::path& root, const std::vector<std::string>& classes) {
  constexpr std::array<std::string_view, 7> kSplits = {"train",      "training", "val",    "valid",
                                                       "validation", "test",     "testing"};
  const auto is_split = [&](std::string name) {
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    return std::ranges::find(kSplits, name) != kSplits.end();
  };
  if (classes.size() < 2 || !std::ranges::all_of(classes, is_split)) return;
  throw DataError(text("the folders in ", root.string(), " are ", join(classes),
                       ", which are names of splits and not of classes; expected train, and val, validation "
                       "or test: rename them"));
}

/// Holds out every tenth image of a folder that has no splits.
Splits split_folder(const std::shared_ptr<const ImageFolder>& whole, View view) {
  std::vector<std::int64_t> train, held_out;
  for (std::int64_t i = 0; i < whole->size(); ++i) (i % 10 == 9 ? held_out : train).push_back(i);
  if (held_out.empty()) {
    throw DataError(text("a folder of ", whole->size(),
                         " images cannot be split: ten at least are needed, or folders train and val"));
  }
  const std::shared_ptr<const Dataset> samples = view(whole);
  return {.images = {.train = std::make_shared<SubsetDataset>(samples, train),
                     .test = std::make_shared<SubsetDataset>(samples, held_out),
                     .held_out = "validation"},
          .classes = whole->classes(),
          .notes = notes_of({whole}),
          .train_digest = whole->content_digest(),
          .test_digest = whole->content_digest()};
}

struct FolderClasses {
  fs::path folder;
  const std::vector<std::string>& names;
};

/// "FOLDER lacks cat, dog"; empty: it has all classes.
std::string lacking(const FolderClasses& one, const FolderClasses& other) {
  std::vector<std::string> names;
  std::ranges::set_difference(other.names, one.names, std::back_inserter(names));
  if (names.empty()) return "";
  constexpr std::size_t kSome = 8;
  const std::size_t shown = std::min(names.size(), kSome);
  return text("; ", one.folder.string(), " lacks ", join(std::span(names).first(shown)),
              shown < names.size() ? text(" and ", names.size() - shown, " more") : "");
}

void check_same_classes(const FolderClasses& train, const FolderClasses& test) {
  if (train.names == test.names) return;
  throw DataError(
      text("both splits need a folder for each class", lacking(train, test), lacking(test, train)));
}

Splits open_split_folders(const fs::path& root, const std::string& held_out, const FolderOptions& options) {
  const auto train =
      std::make_shared<ImageFolder>(root / "train", options.undecodable, options.log, options.most_pixels);
  const auto test =
      std::make_shared<ImageFolder>(root / held_out, options.undecodable, options.log, options.most_pixels);
  check_same_classes({root / "train", train->classes()}, {root / held_out, test->classes()});
  return {.images = {.train = options.view(train),
                     .test = options.view(test),
                     .held_out = held_out == "test" ? "test" : "validation"},
          .classes = train->classes(),
          .notes = notes_of({train, test}),
          .train_digest = train->content_digest(),
          .test_digest = test->content_digest()};
}

Splits open_folder(const Opening& opening, View view) {
  require(!opening.options.path.empty(),
          "data.name = \"image_folder\" needs data.path, the folder with the images");
  const fs::path root = opening.options.path;
  const auto undecodable = opening.options.undecodable == "skip" ? Undecodable::kSkip : Undecodable::kError;
  std::error_code ignored;
  const auto has = [&](const char* name) { return fs::is_directory(root / name, ignored); };
  if (!has("train")) {
    const auto whole =
        std::make_shared<ImageFolder>(root, undecodable, opening.log, opening.options.most_pixels);
    check_classes(root, whole->classes());
    return split_folder(whole, view);
  }
  for (const char* held_out : {"val", "validation", "test"}) {
    if (has(held_out))
      return open_split_folders(root, held_out, {undecodable, opening.log, opening.options.most_pixels, view});
  }
  throw DataError(text(root.string(), " has a folder train, and none of val, validation, test next to it"));
}

}  // namespace

DataSource images_brought_to_size(const ImageSplits& splits, const Opening& opening) {
  const DataOptions& options = opening.options;
  // Mean and standard deviation of ImageNet's training images. Published models are trained with them.
  const auto normalized = normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225});
  const ImageSize size = {options.image_size, options.image_size};
  Transforms changes =
      make_augmentations(options.augment, {.size = size, .crop_padding = options.crop_padding});
  changes.push_back(normalized);
  // The augmentation "resized_crop" resizes images itself. All others need resized images.
  const bool brings_to_size = !options.augment.empty() && options.augment.front() == "resized_crop";
  const auto memory = std::make_shared<SampleMemory>(options.cache_samples_mib << 20);
  const auto kept = [&](std::shared_ptr<const Dataset> images) {
    return options.cache_samples_mib == 0 ? images : kept_samples(std::move(images), memory);
  };
  const auto sized = [&](std::shared_ptr<const Dataset> images) -> std::shared_ptr<const Dataset> {
    return std::make_shared<TransformedDataset>(std::move(images), Transforms{resize_and_crop(size)},
                                                opening.seed);
  };
  DataSource source;
  source.name = options.name;
  source.train = std::make_shared<TransformedDataset>(
      kept(brings_to_size ? splits.train : sized(splits.train)), changes, opening.seed);
  if (splits.test)
    source.test =
        std::make_shared<TransformedDataset>(kept(sized(splits.test)), Transforms{normalized}, opening.seed);
  source.input_shape = {3, options.image_size, options.image_size};
  source.held_out = splits.held_out;
  return source;
}

DataSource open_image_folder(const Opening& opening) {
  const Splits splits = open_folder(opening, decoded_images);
  DataSource source = images_brought_to_size(splits.images, opening);
  source.num_classes = static_cast<std::int64_t>(splits.classes.size());
  source.notes = splits.notes;
  source.train_digest = splits.train_digest;
  source.test_digest = splits.test_digest;
  return source;
}

Packable packable_image_folder(const Opening& opening) {
  const Splits splits = open_folder(opening, encoded_images);
  return {.source = {.name = opening.options.name,
                     .train = splits.images.train,
                     .test = splits.images.test,
                     .num_classes = static_cast<std::int64_t>(splits.classes.size()),
                     .held_out = splits.images.held_out,
                     .notes = splits.notes},
          .path = opening.options.path,
          .encoded = true,
          .classes = splits.classes};
}

}  // namespace trireme::data
