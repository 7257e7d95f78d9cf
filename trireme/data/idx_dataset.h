#pragma once
// Images and labels in a pair of idx files (the MNIST family). They are stored as bytes. A read converts them
// to normalised f32 (1, height, width): (x / 255 - mean) / std. Immutable; thread-safe.

#include <array>
#include <filesystem>

#include "trireme/data/byte_pixels.h"
#include "trireme/data/dataset.h"

namespace trireme::data {

/// The two files, and how bytes become numbers.
struct IdxDatasetOptions {
  std::filesystem::path images = {};
  std::filesystem::path labels = {};
  std::int64_t num_classes = 10;
  Normalisation normalisation = {};  ///< by mean and deviation of all pixels / 255 of the training images
};

class IdxDataset : public Dataset {
 public:
  /// Reads both files at once. Throws DataError: unreadable or foreign files, no images, counts that differ,
  /// a label outside [0, num_classes) (names file, sample and value).
  explicit IdxDataset(const IdxDatasetOptions& options);

  std::int64_t size() const override { return static_cast<std::int64_t>(labels_.size()); }
  Example get(std::int64_t index) const override;
  Example get_batch(std::span<const std::int64_t> indices) const override;
  std::int64_t height() const { return height_; }
  std::int64_t width() const { return width_; }
  /// The bytes of an image as the file has them, row by row, which live as long as the data set; and its
  /// class.
  std::span<const std::uint8_t> pixels(std::int64_t index) const;
  std::int64_t label(std::int64_t index) const { return labels_[static_cast<std::size_t>(index)]; }

 private:
  void check_index(std::int64_t index) const;

  std::filesystem::path images_path_;
  std::vector<std::uint8_t> pixels_, labels_;
  std::int64_t height_ = 0, width_ = 0;
  BytePixels normalise_;
};

/// The same samples with their pixels as they are: u8 (1, height, width).
std::shared_ptr<const Dataset> pixels_of(std::shared_ptr<const IdxDataset> images);

}  // namespace trireme::data
