#include "trireme/data/transform.h"

#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "trireme/base/error.h"
#include "trireme/base/kernels.h"

namespace trireme::data {
namespace {

/// Bytes are resized fastest in channels-last memory.
at::Tensor resized(const at::Tensor& image, const ImageSize& size) {
  if (image.size(1) == size.height && image.size(2) == size.width) return image;
  at::Tensor batch = image.unsqueeze(0);
  if (image.scalar_type() == at::kByte) batch = batch.contiguous(at::MemoryFormat::ChannelsLast);
  return at::_upsample_bilinear2d_aa(batch, {size.height, size.width},
                                     /*align_corners=*/false, c10::nullopt, c10::nullopt)
      .squeeze(0);
}

struct Corner {
  std::int64_t top = 0, left = 0;
};

at::Tensor part_of(const at::Tensor& image, const Corner& corner, const ImageSize& size) {
  return image.slice(1, corner.top, corner.top + size.height).slice(2, corner.left, corner.left + size.width);
}

at::Tensor middle_of(const at::Tensor& image, const ImageSize& size) {
  return part_of(image, {(image.size(1) - size.height) / 2, (image.size(2) - size.width) / 2}, size);
}

/// The middle of an image with one very long side. Covering `size` with the whole image would need far too
/// much memory. Enough is left that no filter reaches from the removed ends into the middle.
at::Tensor without_far_ends(const at::Tensor& image, const ImageSize& size, double scale) {
  constexpr double kSizesLeft = 8;
  const auto left = [&](std::int64_t found, std::int64_t wanted) {
    const auto enough =
        static_cast<std::int64_t>(std::ceil(kSizesLeft * static_cast<double>(wanted) / scale));
    // Removing equally much on both sides does not move the middle.
    return found <= enough ? found : enough + (found - enough) % 2;
  };
  return middle_of(image, {left(image.size(1), size.height), left(image.size(2), size.width)});
}

std::int64_t below(Random& random, std::int64_t bound) {
  return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(bound)));
}

class ResizeAndCrop : public Transform {
 public:
  explicit ResizeAndCrop(const ImageSize& size) : size_(size) {}
  bool is_random() const override { return false; }

  at::Tensor apply(const at::Tensor& image, Random&) const override {
    const double scale = std::max(static_cast<double>(size_.height) / static_cast<double>(image.size(1)),
                                  static_cast<double>(size_.width) / static_cast<double>(image.size(2)));
    const at::Tensor near = without_far_ends(image, size_, scale);
    const auto covering = [&](std::int64_t found, std::int64_t wanted) {
      return std::max<std::int64_t>(wanted, std::lround(static_cast<double>(found) * scale));
    };
    return middle_of(
        resized(near, {covering(near.size(1), size_.height), covering(near.size(2), size_.width)}), size_);
  }

 private:
  ImageSize size_;
};

class RandomResizedCrop : public Transform {
 public:
  explicit RandomResizedCrop(const ImageSize& size) : size_(size), otherwise_(size) {}

  at::Tensor apply(const at::Tensor& image, Random& random) const override {
    const double area = static_cast<double>(image.size(1) * image.size(2));
    // A drawn part may not fit into a long image. After ten such draws, the middle is taken.
    for (int draw = 0; draw < 10; ++draw) {
      const double share = 0.08 + 0.92 * random.uniform();
      const double shape = std::exp((2 * random.uniform() - 1) * std::log(4.0 / 3.0));
      const ImageSize part = {std::max(1L, std::lround(std::sqrt(area * share / shape))),
                              std::max(1L, std::lround(std::sqrt(area * share * shape)))};
      if (part.height > image.size(1) || part.width > image.size(2)) continue;
      const std::int64_t top = below(random, image.size(1) - part.height + 1);
      const std::int64_t left = below(random, image.size(2) - part.width + 1);
      return resized(part_of(image, {top, left}, part), size_);
    }
    return otherwise_.apply(image, random);
  }

 private:
  ImageSize size_;
  ResizeAndCrop otherwise_;
};

class RandomCrop : public Transform {
 public:
  RandomCrop(std::int64_t padding, double fill) : padding_(padding), fill_(fill) {}

  at::Tensor apply(const at::Tensor& image, Random& random) const override {
    const at::Tensor framed = at::constant_pad_nd(image, {padding_, padding_, padding_, padding_}, fill_);
    const std::int64_t top = below(random, 2 * padding_ + 1), left = below(random, 2 * padding_ + 1);
    return part_of(framed, {top, left}, {image.size(1), image.size(2)});
  }

 private:
  std::int64_t padding_;
  double fill_;
};

class RandomFlip : public Transform {
 public:
  at::Tensor apply(const at::Tensor& image, Random& random) const override {
    return random.below(2) == 0 ? image : image.flip(2);
  }
};

/// A distance that is a compile-time constant gives vector instructions.
template <class Value, class Distance>
void convert_at(const Value* from, Distance distance, std::int64_t count, float scale, float shift,
                float* to) {
  run_vectorised([&]() TRIREME_INLINE_BODY {
    TRIREME_NO_CARRIED_DEPENDENCE
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i * distance]) * scale + shift;
  });
}

/// Converts `count` values with stride `distance` to contiguous numbers.
template <class Value>
void convert(const Value* from, std::int64_t distance, std::int64_t count, float scale, float shift,
             float* to) {
  if (distance == 3) {
    convert_at(from, std::integral_constant<std::int64_t, 3>(), count, scale, shift, to);
  } else if (distance == 1) {
    convert_at(from, std::integral_constant<std::int64_t, 1>(), count, scale, shift, to);
  } else {
    convert_at(from, distance, count, scale, shift, to);
  }
}

class Normalize : public Transform {
 public:
  Normalize(const std::array<double, 3>& mean, const std::array<double, 3>& std) {
    for (std::size_t channel = 0; channel < mean.size(); ++channel) {
      require(std[channel] > 0, "the standard deviation to normalise with must be positive, not ",
              std[channel]);
      scale_[channel] = static_cast<float>(1 / (255 * std[channel]));
      shift_[channel] = static_cast<float>(-mean[channel] / std[channel]);
    }
  }

  bool is_random() const override { return false; }

  at::Tensor apply(const at::Tensor& image, Random&) const override {
    require(image.size(0) == 3, "an image of three channels is to be normalised, found one of ",
            image.size(0));
    at::Tensor result = at::empty(image.sizes(), at::kFloat);
    if (image.scalar_type() == at::kByte) {
      fill<std::uint8_t>(result, image);
    } else {
      fill<float>(result, image.to(at::kFloat));
    }
    return result;
  }

 private:
  /// Row by row, in memory order.
  template <class Value>
  void fill(const at::Tensor& result, const at::Tensor& image) const {
    const std::int64_t height = image.size(1), width = image.size(2), pixels = height * width;
    const std::int64_t between_channels = image.stride(0), between_columns = image.stride(2);
    const auto* values = image.const_data_ptr<Value>();
    auto* first = result.data_ptr<float>();
    for (std::int64_t row = 0; row < height; ++row) {
      for (std::size_t channel = 0; channel < scale_.size(); ++channel) {
        const auto number = static_cast<std::int64_t>(channel);
        const Value* from = values + row * image.stride(1) + number * between_channels;
        float* to = first + number * pixels + row * width;
        const float scale = scale_[channel], shift = shift_[channel];
        convert(from, between_columns, width, scale, shift, to);
      }
    }
  }

  std::array<float, 3> scale_{}, shift_{};
};

/// With more padding, a crop could contain nothing of the image.
std::shared_ptr<const Transform> framed_crop(const AugmentationOptions& options) {
  const std::int64_t most = std::max(options.size.height, options.size.width);
  require(options.crop_padding <= most, "data.crop_padding = ", options.crop_padding,
          " is more than an image of ", options.size.height, "x", options.size.width,
          " pixels has; allowed: 0 to ", most);
  return random_crop(options.crop_padding, options.fill);
}

struct AugmentationRow {
  std::string_view name;
  std::shared_ptr<const Transform> (*make)(const AugmentationOptions&);
};

constexpr std::array<AugmentationRow, 3> kAugmentations = {{
    {"crop", framed_crop},
    {"flip", [](const AugmentationOptions&) { return random_flip(); }},
    {"resized_crop", [](const AugmentationOptions& o) { return random_resized_crop(o.size); }},
}};

void check(const ImageSize& size) {
  require(size.height >= 1 && size.width >= 1, "an image cannot be resized to ", size.height, "x",
          size.width);
}

}  // namespace

std::shared_ptr<const Transform> resize_and_crop(const ImageSize& size) {
  check(size);
  return std::make_shared<ResizeAndCrop>(size);
}

std::shared_ptr<const Transform> random_resized_crop(const ImageSize& size) {
  check(size);
  return std::make_shared<RandomResizedCrop>(size);
}

std::shared_ptr<const Transform> random_crop(std::int64_t padding, double fill) {
  require(padding >= 0, "the frame of a random crop cannot have ", padding, " pixels");
  return std::make_shared<RandomCrop>(padding, fill);
}

std::shared_ptr<const Transform> random_flip() { return std::make_shared<RandomFlip>(); }

std::shared_ptr<const Transform> normalize(const std::array<double, 3>& mean,
                                           const std::array<double, 3>& std) {
  return std::make_shared<Normalize>(mean, std);
}

Transforms make_augmentations(const std::vector<std::string>& names, const AugmentationOptions& options) {
  Transforms transforms;
  for (const std::string& name : names) {
    const auto* row = std::find_if(kAugmentations.begin(), kAugmentations.end(),
                                   [&](const AugmentationRow& r) { return r.name == name; });
    require(row != kAugmentations.end(), "unknown augmentation '", name, "'",
            suggest(name, augmentation_names()));
    transforms.push_back(row->make(options));
  }
  return transforms;
}

std::vector<std::string> augmentation_names() {
  std::vector<std::string> names;
  for (const AugmentationRow& row : kAugmentations) names.emplace_back(row.name);
  return names;
}

}  // namespace trireme::data
