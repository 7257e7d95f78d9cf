#pragma once
// Images in folders, one folder per class: ROOT/CLASS/any/depth/NAME.{jpg,jpeg,png,webp,bmp}, the layout of
// ImageNet and of torchvision's ImageFolder. Classes are the names of the folders in order, images come in
// the order of their paths: the numbers are the same on every machine. Names that begin with a dot are
// hidden, and left out as __MACOSX is; other files that are no image by name are counted. Images are decoded
// on request and not cached. Immutable but for its record of warnings; thread-safe.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/log.h"
#include "trireme/data/dataset.h"

namespace trireme::data {

/// Handling of undecodable files of a folder.
enum class Undecodable {
  kError,  ///< DataError that names it
  kSkip,   ///< is left out, with a warning
};

class ImageFolder : public Dataset {
 public:
  /// Throws DataError when there is no such folder, no class in it, or a class without an image.
  ImageFolder(const std::filesystem::path& root, Undecodable undecodable, const Log& log,
              std::int64_t most_pixels = kMaxPixels);
  ~ImageFolder() override;

  std::int64_t size() const override;
  /// input: u8 (3, height, width), in the size of the file. Throws as read_image does.
  Example get(std::int64_t index) const override;
  Fields get_targets(std::span<const std::int64_t> indices) const override;
  const std::vector<std::string>& classes() const;
  /// "left out 4 files in ROOT: .gif 3, .txt 1", of files that are no image by name; empty: none is.
  const std::string& left_out() const;
  /// input: u8 (bytes), the file as it is. Throws where it does not decode.
  Example encoded(std::int64_t index) const;
  /// Of all names below the folder, with their classes, and of the sizes of some thousand files.
  std::string content_digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The same samples as bytes of their files.
std::shared_ptr<const Dataset> encoded_images(std::shared_ptr<const ImageFolder> images);

}  // namespace trireme::data
