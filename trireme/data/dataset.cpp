#include "trireme/data/dataset.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

/// Copies by hand: at::stack would start an OpenMP team in every loader thread.
void put(at::Tensor& batch, std::size_t row, std::int64_t sample_index, const at::Tensor& sample) {
  const at::Tensor values = sample.contiguous();
  if (values.scalar_type() != batch.scalar_type() || values.sizes() != batch.sizes().slice(1)) {
    throw DataError(text("sample ", sample_index, " has shape ", values.sizes(), " and type ",
                         values.scalar_type(), ", another of its batch ", batch.sizes().slice(1), " and ",
                         batch.scalar_type(), "; all samples of a data set must be alike"));
  }
  if (values.nbytes() == 0) return;
  std::memcpy(static_cast<char*>(batch.data_ptr()) + row * values.nbytes(), values.const_data_ptr(),
              values.nbytes());
}

at::Tensor batch_like(const at::Tensor& sample, std::size_t count) {
  std::vector<std::int64_t> shape = {static_cast<std::int64_t>(count)};
  shape.insert(shape.end(), sample.sizes().begin(), sample.sizes().end());
  return at::empty(shape, sample.options());
}

}  // namespace

Example Dataset::get_batch(std::span<const std::int64_t> indices) const {
  // An empty batch still has to have the shape of a sample.
  const Example first = get(indices.empty() ? 0 : indices[0]);
  Example batch{batch_like(first.input, indices.size()), batch_like(first.target, indices.size())};
  for (std::size_t row = 0; row < indices.size(); ++row) {
    const Example sample = row == 0 ? first : get(indices[row]);
    put(batch.input, row, indices[row], sample.input);
    put(batch.target, row, indices[row], sample.target);
  }
  return batch;
}

std::shared_ptr<const Dataset> Dataset::in_epoch(std::uint64_t /*epoch*/) const { return nullptr; }

void check_finite(const Example& batch, std::span<const std::int64_t> indices) {
  if (indices.empty() || batch.input.scalar_type() != at::kFloat) return;
  const at::Tensor input = batch.input.contiguous();
  const std::span values(input.const_data_ptr<float>(), static_cast<std::size_t>(input.numel()));
  // All exponent bits set: infinite or not a number. An integer test that the compiler turns into vectors.
  constexpr std::uint32_t kExponent = 0x7f800000;
  std::uint32_t found = 0;
  for (const float value : values) {
    found |= static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent);
  }
  if (found == 0) return;
  const auto bad =
      std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  const auto place = static_cast<std::size_t>(bad - values.begin()),
             per_sample = values.size() / indices.size();
  throw DataError(text("sample ", indices[place / per_sample], " of the data set holds ", *bad,
                       " as its number ", place % per_sample,
                       ": training needs finite numbers; mend the sample or leave it out"));
}

}  // namespace trireme::data
