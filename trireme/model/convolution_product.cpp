#include "trireme/model/internal/convolution_product.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace trireme::model {
namespace {

constexpr auto kLast = at::MemoryFormat::ChannelsLast;

/// The sizes of a convolution. A tap is one element of the kernel.
struct Sizes {
  std::int64_t batch, in, height, width;
  std::int64_t out, out_height, out_width;
  std::int64_t kernel_height, kernel_width;
  std::int64_t stride_height, stride_width, padding_height, padding_width;

  Sizes(const at::Tensor& input, const at::Tensor& weight, const Geometry& geometry)
      : batch(input.size(0)),
        in(input.size(1)),
        height(input.size(2)),
        width(input.size(3)),
        out(weight.size(0)),
        kernel_height(weight.size(2)),
        kernel_width(weight.size(3)),
        stride_height(geometry.stride[0]),
        stride_width(geometry.stride[1]),
        padding_height(geometry.padding[0]),
        padding_width(geometry.padding[1]) {
    out_height = (height + 2 * padding_height - kernel_height) / stride_height + 1;
    out_width = (width + 2 * padding_width - kernel_width) / stride_width + 1;
  }

  std::int64_t taps() const { return kernel_height * kernel_width; }
  std::int64_t rows() const { return batch * out_height * out_width; }
  /// Whether each pixel of the input is already a row of the patch matrix.
  bool is_plain() const {
    return taps() == 1 && stride_height == 1 && stride_width == 1 && padding_height == 0 &&
           padding_width == 0;
  }
};

/// Channels of the input pixels under the kernel at one output position, tap by tap; null: padding.
template <class Pixel>
void find_taps(const Sizes& sizes, Pixel* sample, std::int64_t row, std::int64_t column,
               std::vector<Pixel*>& taps) {
  std::size_t next = 0;
  for (std::int64_t i = 0; i < sizes.kernel_height; ++i) {
    const std::int64_t y = row * sizes.stride_height - sizes.padding_height + i;
    for (std::int64_t j = 0; j < sizes.kernel_width; ++j) {
      const std::int64_t x = column * sizes.stride_width - sizes.padding_width + j;
      const bool inside = y >= 0 && y < sizes.height && x >= 0 && x < sizes.width;
      taps[next++] = inside ? sample + (y * sizes.width + x) * sizes.in : nullptr;
    }
  }
}

/// Calls `visit(taps, patch)` for every output position. Samples run in parallel.
template <class Pixel, class Patch, class Visit>
void for_each_patch(const Sizes& sizes, Pixel* pixels, Patch* patches, const Visit& visit) {
  const std::int64_t of_sample = sizes.out_height * sizes.out_width * sizes.in * sizes.taps();
  at::parallel_for(0, sizes.batch, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<Pixel*> taps(static_cast<std::size_t>(sizes.taps()));
    for (std::int64_t sample = begin; sample < end; ++sample) {
      Pixel* of_input = pixels + sample * sizes.height * sizes.width * sizes.in;
      Patch* patch = patches + sample * of_sample;
      for (std::int64_t row = 0; row < sizes.out_height; ++row) {
        for (std::int64_t column = 0; column < sizes.out_width; ++column) {
          find_taps(sizes, of_input, row, column, taps);
          visit(taps, patch);
          patch += sizes.in * sizes.taps();
        }
      }
    }
  });
}

/// Patches are ordered either by channel, as weights are, or by tap, as pixels are. The side with fewer rows
/// is reordered to match the other.
class Order {
 public:
  explicit Order(const Sizes& sizes)
      : by_tap_(sizes.rows() > sizes.out),
        tap_step_(by_tap_ ? sizes.in : 1),
        channel_step_(by_tap_ ? 1 : sizes.taps()) {}

  bool by_tap() const { return by_tap_; }
  std::int64_t tap(std::size_t number) const { return static_cast<std::int64_t>(number) * tap_step_; }

  /// Calls `visit(i, channel)` with the offset i of each channel of a tap.
  template <class Visit>
  void for_each_channel(std::int64_t channels, const Visit& visit) const {
    if (by_tap_) {
      for (std::int64_t c = 0; c < channels; ++c) visit(c, c);
    } else {
      for (std::int64_t c = 0; c < channels; ++c) visit(c * channel_step_, c);
    }
  }

 private:
  bool by_tap_;
  std::int64_t tap_step_, channel_step_;
};

/// The patch matrix (rows, in * taps).
at::Tensor patches_of(const at::Tensor& input, const Sizes& sizes) {
  const at::Tensor pixels = input.contiguous(kLast);
  if (sizes.is_plain()) return pixels.permute({0, 2, 3, 1}).view({sizes.rows(), sizes.in});
  const Order order(sizes);
  at::Tensor patches = at::empty({sizes.rows(), sizes.in * sizes.taps()}, input.options());
  for_each_patch(sizes, pixels.const_data_ptr<float>(), patches.data_ptr<float>(),
                 [&](const std::vector<const float*>& taps, float* patch) {
                   for (std::size_t tap = 0; tap < taps.size(); ++tap) {
                     const float* from = taps[tap];
                     float* to = patch + order.tap(tap);
                     order.for_each_channel(sizes.in, [&](std::int64_t i, std::int64_t channel) {
                       to[i] = from == nullptr ? 0 : from[channel];
                     });
                   }
                 });
  return patches;
}

/// The reverse of patches_of: each patch value is added to its pixel.
at::Tensor sum_of_patches(const at::Tensor& patches, const Sizes& sizes) {
  if (sizes.is_plain()) {
    return patches.view({sizes.batch, sizes.height, sizes.width, sizes.in}).permute({0, 3, 1, 2});
  }
  const Order order(sizes);
  at::Tensor pixels = at::zeros({sizes.batch, sizes.height, sizes.width, sizes.in}, patches.options());
  for_each_patch(sizes, pixels.data_ptr<float>(), patches.const_data_ptr<float>(),
                 [&](const std::vector<float*>& taps, const float* patch) {
                   for (std::size_t tap = 0; tap < taps.size(); ++tap) {
                     float* to = taps[tap];
                     if (to == nullptr) continue;
                     const float* from = patch + order.tap(tap);
                     order.for_each_channel(
                         sizes.in, [&](std::int64_t i, std::int64_t channel) { to[channel] += from[i]; });
                   }
                 });
  return pixels.permute({0, 3, 1, 2});
}

at::Tensor as_rows(const at::Tensor& output, const Sizes& sizes) {
  return output.contiguous(kLast).permute({0, 2, 3, 1}).view({sizes.rows(), sizes.out});
}

/// The weight as a matrix (out, in * taps), with the columns in the order of the patches.
at::Tensor as_matrix(const at::Tensor& weight, const Sizes& sizes) {
  const at::MemoryFormat format = Order(sizes).by_tap() ? kLast : at::MemoryFormat::Contiguous;
  return weight.contiguous(format).as_strided({sizes.out, sizes.in * sizes.taps()},
                                              {sizes.in * sizes.taps(), 1});
}

/// The reverse of as_matrix, contiguous.
at::Tensor as_weight(const at::Tensor& matrix, const at::Tensor& weight, const Sizes& sizes) {
  if (!Order(sizes).by_tap() || sizes.taps() == 1) return matrix.view(weight.sizes());
  return matrix.view({sizes.out, sizes.kernel_height, sizes.kernel_width, sizes.in})
      .permute({0, 3, 1, 2})
      .contiguous();
}

}  // namespace

at::Tensor product_convolution(const at::Tensor& input, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias, const Geometry& geometry) {
  const Sizes sizes(input, weight, geometry);
  at::Tensor output = at::mm(patches_of(input, sizes), as_matrix(weight, sizes).t());
  if (bias && bias->defined()) output.add_(*bias);
  return output.view({sizes.batch, sizes.out_height, sizes.out_width, sizes.out}).permute({0, 3, 1, 2});
}

at::Tensor product_gradient_of_input(const at::Tensor& grad_output, const at::Tensor& input,
                                     const at::Tensor& weight, const Geometry& geometry) {
  const Sizes sizes(input, weight, geometry);
  return sum_of_patches(at::mm(as_rows(grad_output, sizes), as_matrix(weight, sizes)), sizes);
}

at::Tensor product_gradient_of_weight(const at::Tensor& grad_output, const at::Tensor& input,
                                      const at::Tensor& weight, const Geometry& geometry) {
  const Sizes sizes(input, weight, geometry);
  return as_weight(at::mm(as_rows(grad_output, sizes).t(), patches_of(input, sizes)), weight, sizes);
}

}  // namespace trireme::model
