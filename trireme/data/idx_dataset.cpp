#include "trireme/data/idx_dataset.h"

#include <ATen/ops/empty.h>

#include "trireme/base/error.h"
#include "trireme/data/internal/idx_file.h"

namespace trireme::data {
namespace {

void check_labels(const IdxDatasetOptions& options, std::span<const std::uint8_t> labels) {
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < options.num_classes) continue;
    throw DataError(text(options.labels.string(), ": the label of sample ", i, " is ", int{labels[i]},
                         ", expected 0 to ", options.num_classes - 1));
  }
}

}  // namespace

IdxDataset::IdxDataset(const IdxDatasetOptions& options) : images_path_(options.images) {
  require(options.std > 0, "the standard deviation to normalise with must be positive, not ", options.std);
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
  scale_ = static_cast<float>(1 / (255 * options.std));
  shift_ = static_cast<float>(-options.mean / options.std);
}

void IdxDataset::check_index(std::int64_t index) const {
  require(index >= 0 && index < size(), "sample ", index, " of ", images_path_.string(),
          " was asked for, it has ", size());
}

void IdxDataset::convert(std::int64_t index, float* target) const {
  const std::int64_t pixels = height_ * width_;
  const std::uint8_t* source = pixels_.data() + index * pixels;
  for (std::int64_t i = 0; i < pixels; ++i) target[i] = static_cast<float>(source[i]) * scale_ + shift_;
}

Example IdxDataset::get(std::int64_t index) const {
  check_index(index);
  Example example{at::empty({1, height_, width_}, at::kFloat), at::empty({}, at::kLong)};
  convert(index, example.input->data_ptr<float>());
  *example.target->data_ptr<std::int64_t>() = labels_[static_cast<std::size_t>(index)];
  return example;
}

Example IdxDataset::get_batch(std::span<const std::int64_t> indices) const {
  const auto count = static_cast<std::int64_t>(indices.size());
  Example batch{at::empty({count, 1, height_, width_}, at::kFloat), at::empty({count}, at::kLong)};
  float* inputs = batch.input->data_ptr<float>();
  auto* targets = batch.target->data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < count; ++row) {
    const std::int64_t index = indices[static_cast<std::size_t>(row)];
    check_index(index);
    convert(index, inputs + row * height_ * width_);
    targets[row] = labels_[static_cast<std::size_t>(index)];
  }
  return batch;
}

}  // namespace trireme::data
