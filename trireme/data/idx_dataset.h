#pragma once
// Images and labels in a pair of idx files (the MNIST family), held as bytes and made into normalised f32
// (1, height, width) only when asked for: (x / 255 - mean) / std. Immutable; thread-safe.

#include <array>
#include <filesystem>

#include "trireme/data/dataset.h"

namespace trireme::data {

struct IdxDatasetOptions {
  std::filesystem::path images = {};
  std::filesystem::path labels = {};
  std::int64_t num_classes = 10;
  double mean = 0;  ///< of all pixels / 255 of the training images
  double std = 1;   ///< positive
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

 private:
  /// Writes the normalised image `index` to `target`.
  void convert(std::int64_t index, float* target) const;
  void check_index(std::int64_t index) const;

  std::filesystem::path images_path_;
  std::vector<std::uint8_t> pixels_, labels_;
  std::int64_t height_ = 0, width_ = 0;
  float scale_ = 1, shift_ = 0;
};

}  // namespace trireme::data
