#include "trireme/data/idx_dataset.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/data/internal/idx_file.h"

namespace trireme::data {
namespace {

void check_labels(const IdxDatasetOptions& options, std::span<const std::uint8_t> labels) {
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < options.num_classes) continue;
    throw DataError(text(options.labels.string(), ": the label of sample ", i, " is ", int{labels[i]},
                         ", expected 0 to ", options.num_classes - 1,
                         "; data.num_classes says how many classes there are"));
  }
}

}  // namespace

IdxDataset::IdxDataset(const IdxDatasetOptions& options)
    : images_path_(options.images), normalise_(options.normalisation) {
  IdxFile images = read_idx(options.images, 3);
  IdxFile labels = read_idx(options.labels, 1);
  if (images.dims[0] != labels.dims[0]) {
    throw DataError(text(options.images.string(), " holds ", images.dims[0], " images, but ",
                         options.labels.string(), " ", labels.dims[0],
                         " labels: they do not belong together"));
  }
  if (images.values.empty()) throw DataError(text(options.images.string(), " holds no images"));
  check_labels(options, labels.values);
  pixels_ = std::move(images.values);
  labels_ = std::move(labels.values);
  height_ = images.dims[1];
  width_ = images.dims[2];
}

void IdxDataset::check_index(std::int64_t index) const {
  require(index >= 0 && index < size(), "sample ", index, " of ", images_path_.string(),
          " was asked for, it has ", size());
}

std::span<const std::uint8_t> IdxDataset::pixels(std::int64_t index) const {
  check_index(index);
  const auto size = static_cast<std::size_t>(height_ * width_);
  return std::span(pixels_).subspan(static_cast<std::size_t>(index) * size, size);
}

Example IdxDataset::get(std::int64_t index) const {
  Example example{at::empty({1, height_, width_}, at::kFloat), at::empty({}, at::kLong)};
  normalise_.convert(pixels(index), example.input->data_ptr<float>());
  *example.target->data_ptr<std::int64_t>() = label(index);
  return example;
}

Example IdxDataset::get_batch(std::span<const std::int64_t> indices) const {
  const auto count = static_cast<std::int64_t>(indices.size());
  Example batch{at::empty({count, 1, height_, width_}, at::kFloat), at::empty({count}, at::kLong)};
  float* inputs = batch.input->data_ptr<float>();
  auto* targets = batch.target->data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < count; ++row) {
    const std::int64_t index = indices[static_cast<std::size_t>(row)];
    normalise_.convert(pixels(index), inputs + row * height_ * width_);
    targets[row] = label(index);
  }
  return batch;
}

namespace {

class IdxPixels : public Dataset {
 public:
  explicit IdxPixels(std::shared_ptr<const IdxDataset> images) : images_(std::move(images)) {}
  std::int64_t size() const override { return images_->size(); }
  Example get(std::int64_t index) const override {
    const std::span<const std::uint8_t> pixels = images_->pixels(index);
    Example example{at::empty({1, images_->height(), images_->width()}, at::kByte), at::empty({}, at::kLong)};
    std::copy(pixels.begin(), pixels.end(), example.input->data_ptr<std::uint8_t>());
    *example.target->data_ptr<std::int64_t>() = images_->label(index);
    return example;
  }

 private:
  std::shared_ptr<const IdxDataset> images_;
};

}  // namespace

std::shared_ptr<const Dataset> pixels_of(std::shared_ptr<const IdxDataset> images) {
  return std::make_shared<IdxPixels>(std::move(images));
}

}  // namespace trireme::data
