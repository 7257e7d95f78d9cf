#pragma once
// The codecs of compress/codec.h with tensor operations, for values and bytes on a device: nothing of them is
// read back. The bytes have the layout of the host's codec, and either decodes those of the other. They are
// the host's bytes. Those of "qsgd" and "sign" are the host's up to rounding: a device adds up a block's
// scale in f64 and its own order. A codec is a row of the table in device_codec.cpp. Functions without state;
// any thread. Cost: some kernels for each call, for any size, and temporary tensors as large as the values.

#include <ATen/core/Tensor.h>

#include <vector>

#include "trireme/compress/codec.h"
#include "trireme/parallel/data/internal/flag.h"

namespace trireme::parallel {

class DeviceCodec {
 public:
  virtual ~DeviceCodec() = default;
  /// Of `values` (f32, flat) into `bytes` (u8, flat, at least most_bytes(), aligned to 8 bytes). Returns how
  /// many it took: i64 without dims, on the device.
  virtual at::Tensor encode(const at::Tensor& values, const compress::Codec::Options& how,
                            const at::Tensor& bytes) const = 0;
  struct Said {
    at::Tensor values;  ///< f32, flat; of no meaning where it does not fit
    Flag fits = true;   ///< whether the bytes are an encoding of so many values
  };
  /// `used`: the result of encode(), as it arrived: any number.
  virtual Said decode(const at::Tensor& bytes, const at::Tensor& used, std::int64_t num_values) const = 0;
  /// As compress::Codec::take_out(); `said` is the result of decode() for the encoded bytes.
  virtual void take_out(const at::Tensor& said, const at::Tensor& values) const;
};

/// Of a codec of compress::codec() or nearest_codec(). Throws InternalError where the table has none.
const DeviceCodec& device_codec(const compress::Codec& codec);

// One maker per kind.
const DeviceCodec& device_fp16_codec();
const DeviceCodec& device_bf16_codec();
const DeviceCodec& device_int8_codec();
const DeviceCodec& device_nearest_int8_codec();
const DeviceCodec& device_qsgd_codec();
const DeviceCodec& device_sign_codec();
const DeviceCodec& device_top_k_codec();

// Common functions of several of them.

constexpr std::int64_t kLow32 = 0xffffffff;  ///< the bits of u32 in i64

/// Of another type, where `bytes` begin: so many elements.
at::Tensor numbers_in(const at::Tensor& bytes, std::int64_t begin, std::int64_t count, at::ScalarType type);
/// Whether so many bytes were used.
Flag are_used(const at::Tensor& used, std::int64_t bytes);
/// i64 without dims.
at::Tensor number_on(c10::Device device, std::int64_t number);
/// Rows of `size`, the last one filled up with zeros.
at::Tensor rows_of(const at::Tensor& values, std::int64_t size);
/// A flat tensor of the host, i64, copied there without a wait.
at::Tensor to_device(const std::vector<std::int64_t>& numbers, c10::Device device);
/// Initial values of the host codecs' random numbers of each row: i64 of 32 bits.
at::Tensor seeds_of_rows(std::int64_t rows, std::uint64_t seed, c10::Device device);
/// Uniform bits of 32 for each of `size` values of each row, i64.
at::Tensor drawn_for_rows(const at::Tensor& seeds, std::int64_t size);
/// Rows whose numbers are drawn at once, so that temporary tensors stay small.
constexpr std::int64_t kRowsAtOnce = 8192;

}  // namespace trireme::parallel
