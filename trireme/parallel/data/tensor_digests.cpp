#include "trireme/parallel/data/internal/tensor_digests.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/view_as_real.h>

#ifndef NDEBUG
#define XXH_NO_INLINE_HINTS 1  // gcc does not inline some of them with -Og and sanitizers
#endif
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace trireme::parallel {
namespace {

/// In the order of the elements, for any memory layout.
std::int64_t digest_on_host(const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  return digest_of(values.const_data_ptr(), values.nbytes());
}

/// Asynchronous on the device.
at::Tensor sum_of_words(const at::Tensor& tensor) {
  const at::Tensor real = tensor.is_complex() ? at::view_as_real(tensor) : tensor;
  const auto size = real.element_size();
  const at::ScalarType type = size == 1   ? at::kByte
                              : size == 2 ? at::kShort
                              : size == 4 ? at::kInt
                                          : at::kLong;
  const at::Tensor words = at::empty({0}, real.options().dtype(type));
  words.set_(real.storage(), real.storage_offset(), real.sizes(), real.strides());
  return at::sum(words, at::kLong);
}

}  // namespace

std::int64_t digest_of(const void* bytes, std::size_t count) {
  return static_cast<std::int64_t>(XXH3_64bits(bytes, count));
}

std::vector<std::int64_t> digests_of(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> digests(tensors.size());
  std::vector<at::Tensor> sums;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor values = tensors[i].detach();
    if (values.is_cpu()) {
      digests[i] = digest_on_host(values);
    } else {
      sums.push_back(sum_of_words(values));
      places.push_back(i);
    }
  }
  if (sums.empty()) return digests;
  const at::Tensor read = at::stack(sums).cpu();  // the only synchronization with the device
  const auto* sum = read.const_data_ptr<std::int64_t>();
  for (const std::size_t place : places) digests[place] = *sum++;
  return digests;
}

}  // namespace trireme::parallel
