#include "trireme/data/dataset.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/foreign_error.h"
#include "trireme/data/internal/row_team.h"
#include "trireme/data/internal/stacked_targets.h"
#include "trireme/data/loader.h"

namespace trireme::data {
namespace {

/// No at::stack: it would start an OpenMP team in every loader thread.
void put(const at::Tensor& batch, std::size_t row, std::int64_t sample_index, const at::Tensor& sample) {
  const at::Tensor values = sample.contiguous();
  if (values.scalar_type() != batch.scalar_type() || values.sizes() != batch.sizes().slice(1)) {
    throw DataError(text("sample ", sample_index, " has shape ", values.sizes(), " and type ",
                         values.scalar_type(), ", another of its batch ", batch.sizes().slice(1), " and ",
                         batch.scalar_type(),
                         "; all samples of a data set must be alike, or be padded to "
                         "one size (data/collate.h)"));
  }
  if (values.nbytes() == 0) return;
  std::memcpy(static_cast<char*>(batch.data_ptr()) + row * values.nbytes(), values.const_data_ptr(),
              values.nbytes());
}

void put(const Fields& batch, std::size_t row, std::int64_t sample_index, const Fields& sample) {
  check_same_fields(sample, batch, sample_index);
  for (std::size_t i = 0; i < batch.size(); ++i) put(batch.at(i), row, sample_index, sample.at(i));
}

Fields batch_like(const Fields& sample, std::size_t count) {
  return sample.map([&](const at::Tensor& tensor) {
    std::vector<std::int64_t> shape = {static_cast<std::int64_t>(count)};
    shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
    return at::empty(shape, tensor.options());
  });
}

/// Adds the sample's number to exceptions of code that does not have it.
Example get_named(const Dataset& dataset, std::int64_t index) {
  return as_data_error_of([index] { return text("sample ", index); }, [&] { return dataset.get(index); });
}

void check_finite(const batch::Field& field, std::span<const std::int64_t> indices) {
  if (field.tensor.scalar_type() != at::kFloat) return;
  const at::Tensor input = field.tensor.contiguous();
  const std::span values(input.const_data_ptr<float>(), static_cast<std::size_t>(input.numel()));
  // All exponent bits set: infinite or NaN. The compiler vectorizes this integer test.
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
                       field.name.empty() ? "" : text(" of '", field.name, "'"),
                       ": training needs finite numbers; repair the sample or leave it out"));
}

}  // namespace

Example Dataset::get_batch(std::span<const std::int64_t> indices) const {
  // An empty batch still has to have the shape of a sample.
  const Example first = get_named(*this, indices.empty() ? 0 : indices[0]);
  Example batch{batch_like(first.input, indices.size()), batch_like(first.target, indices.size())};
  for_each_row(indices.size(), [&](std::size_t row) {
    const Example sample = row == 0 ? first : get_named(*this, indices[row]);
    const StageScope collating(Stage::kCollate);
    put(batch.input, row, indices[row], sample.input);
    put(batch.target, row, indices[row], sample.target);
  });
  return batch;
}

Fields Dataset::get_targets(std::span<const std::int64_t> indices) const { return get_batch(indices).target; }

Fields stacked_targets(std::span<const std::int64_t> indices, const TargetOf& target_of) {
  const Fields first = target_of(indices.empty() ? 0 : indices[0]);
  const Fields batch = batch_like(first, indices.size());
  for (std::size_t row = 0; row < indices.size(); ++row)
    put(batch, row, indices[row], row == 0 ? first : target_of(indices[row]));
  return batch;
}

Fields target_of(const Dataset& dataset, std::int64_t index) {
  return dataset.get_targets({&index, 1}).map([](const at::Tensor& batch) { return batch.select(0, 0); });
}

double Dataset::cost(std::int64_t /*index*/) const { return 1; }

Example Dataset::trial_batch(std::int64_t samples) const {
  std::vector<std::int64_t> first(static_cast<std::size_t>(samples));
  std::iota(first.begin(), first.end(), std::int64_t{0});
  return get_batch(first);
}

std::unique_ptr<BatchStream> Dataset::open(const StreamOptions& options) const {
  return std::make_unique<Loader>(std::shared_ptr<const Dataset>(std::shared_ptr<void>(), this), options);
}

std::shared_ptr<const Dataset> indexed(std::shared_ptr<const TrainingData> data) {
  auto numbered = std::dynamic_pointer_cast<const Dataset>(std::move(data));
  require(numbered != nullptr, "these samples are made as they are asked for, and have no numbers");
  return numbered;
}

std::shared_ptr<const Dataset> Dataset::in_epoch(std::uint64_t /*epoch*/) const { return nullptr; }

void check_same_fields(const Fields& sample, const Fields& other, std::int64_t index) {
  if (batch::same_names(sample, other)) return;
  throw DataError(text("sample ", index, " has ", batch::to_text(sample), ", and another of its batch has ",
                       batch::to_text(other), "; all samples of a data set have the same fields"));
}

void check_finite(const Example& batch, std::span<const std::int64_t> indices) {
  if (indices.empty()) return;
  for (const batch::Field& field : batch.input) check_finite(field, indices);
}

}  // namespace trireme::data
