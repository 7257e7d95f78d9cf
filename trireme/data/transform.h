#pragma once
// Transforms of an image on its way into a batch: the interface, and the transforms of the library. Random
// ones draw from the given generator, which a TransformedDataset keys by (seed, epoch, sample): a transformed
// sample depends on neither rank nor worker. Transforms are immutable; thread-safe. Sources: padded crop and
// flip as in He et al. (arXiv 1512.03385, section 4.2); the crop of random size and shape as in Szegedy et
// al. (arXiv 1409.4842, section 6).

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/random.h"

namespace trireme::data {

class Transform {
 public:
  virtual ~Transform() = default;
  /// `image`: (channels, height, width), u8 or f32; the result has the same type unless documented otherwise.
  virtual at::Tensor apply(const at::Tensor& image, Random& random) const = 0;
  /// False: it draws nothing, an image becomes the same in every epoch.
  virtual bool is_random() const { return true; }
};

/// Applied one after the other, the first first.
using Transforms = std::vector<std::shared_ptr<const Transform>>;

/// Of an image, in pixels.
struct ImageSize {
  std::int64_t height = 0, width = 0;
};

/// The image resized so that it just covers `size`, and the middle of that. Bilinear, antialiased; bytes are
/// rounded to bytes, as Pillow and torchvision do it.
std::shared_ptr<const Transform> resize_and_crop(const ImageSize& size);

/// A random part of the image, resized to `size` in the same way. It has 8 % to 100 % of the area and an
/// aspect ratio of 3:4 to 4:3.
std::shared_ptr<const Transform> random_resized_crop(const ImageSize& size);

/// The image, framed by `padding` pixels of the value `fill`, and of that a random part of the image's size.
std::shared_ptr<const Transform> random_crop(std::int64_t padding, double fill);

/// Left becomes right for every second image.
std::shared_ptr<const Transform> random_flip();

/// (value / 255 - mean) / std per channel: from u8, or f32 of 0 to 255, to f32.
std::shared_ptr<const Transform> normalize(const std::array<double, 3>& mean,
                                           const std::array<double, 3>& std);

/// Options of the names of data.augment, in their order.
struct AugmentationOptions {
  ImageSize size;
  std::int64_t crop_padding = 4;
  double fill = 0;  ///< of the frame: the image's value of black
};

/// One row per augmentation: "crop", "flip", "resized_crop". Throws InvalidArgument for an unknown name, and
/// for a padding of "crop" that is larger than the image.
Transforms make_augmentations(const std::vector<std::string>& names, const AugmentationOptions& options);
std::vector<std::string> augmentation_names();

}  // namespace trireme::data
