#pragma once
// Arrays as numpy.save writes them (format versions 1 to 3). Source: "A Simple File Format for NumPy Arrays",
// numpy.lib.format. Floats become f32, whole numbers i64, truth values stay; either byte order. Stateless.

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

namespace trireme::data {

struct NpyHeader {
  char kind = 'f';  ///< 'f', 'i', 'u' or 'b', as NumPy has them
  std::int64_t item_bytes = 4;
  bool big_endian = false;
  bool fortran_order = false;
  std::vector<std::int64_t> shape = {};
  std::int64_t header_bytes = 0;  ///< where the values begin

  std::int64_t items() const;
  at::ScalarType type() const;
};

/// So much of a file holds any header that is read.
inline constexpr std::int64_t kMaxNpyHeaderBytes = 65536 + 16;

/// From the first bytes of a file of `file_bytes`. Throws DataError with the reason alone: another format, a
/// type that is none of the above, a length that is not that of the shape.
NpyHeader parse_npy_header(std::string_view beginning, std::int64_t file_bytes);

/// `bytes` hold the items of `shape`, in C order.
at::Tensor npy_values(const NpyHeader& header, const std::vector<std::int64_t>& shape,
                      std::string_view bytes);

/// A whole file, of either order.
at::Tensor parse_npy(std::string_view content);

}  // namespace trireme::data
