#include "trireme/objective/internal/targets.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::objective {

std::string kind_of(const at::Tensor& tensor) {
  return text(tensor.scalar_type(), " of shape ", tensor.sizes());
}

std::string batch_in_words(std::span<const std::int64_t> indices) {
  return text("the batch that begins with sample ", indices[0], " of the data set has ");
}

void check_rows(const data::Example& batch, std::span<const std::int64_t> indices) {
  if (indices.empty()) return;
  const auto samples = static_cast<std::int64_t>(indices.size());
  for (const auto& [name, target] : batch.target) {
    if (target.dim() >= 1 && target.size(0) == samples && target.numel() > 0) continue;
    throw DataError(text(batch_in_words(indices), target.dim() < 1 ? 1 : target.size(0), " targets",
                         name.empty() ? "" : text(" '", name, "'"), " for its ", samples,
                         " samples: they are ", kind_of(target), "; expected a first dim of ", samples));
  }
}

void check_numbers(const data::Example& batch, std::span<const std::int64_t> indices,
                   const NumberRange& range) {
  check_rows(batch, indices);
  if (indices.empty()) return;
  const at::Tensor targets = at::Tensor(batch.target).contiguous();
  if (targets.scalar_type() != at::kFloat) {
    throw DataError(text(batch_in_words(indices), "targets that are ", kind_of(targets),
                         "; expected numbers, which are Float"));
  }
  const std::span values(targets.const_data_ptr<float>(), static_cast<std::size_t>(targets.numel()));
  const auto is_bad = [&](float value) { return !(value >= range.least && value <= range.most); };
  const auto bad = std::find_if(values.begin(), values.end(), is_bad);
  if (bad == values.end()) return;
  const auto place = static_cast<std::size_t>(bad - values.begin()),
             per_sample = values.size() / indices.size();
  throw DataError(text("sample ", indices[place / per_sample], " of the data set has ", *bad, " as number ",
                       place % per_sample, " of its target, which is ", range.otherwise));
}

void check_alike(const at::Tensor& output, const at::Tensor& target) {
  const bool same_rows = output.dim() >= 1 && target.dim() >= 1 && output.size(0) == target.size(0);
  const bool flat = output.dim() <= 2 || target.dim() <= 2;
  const bool alike =
      output.sizes() == target.sizes() || (same_rows && flat && output.numel() == target.numel());
  if (alike && output.is_floating_point()) return;
  throw InvalidArgument(
      text("the model makes ", kind_of(output), " for targets that are ", kind_of(target),
           "; expected a floating-point number for each number of the targets, in the same shape, or one of "
           "them with a flat row for each sample"));
}

at::Tensor as_target(const at::Tensor& output, const at::Tensor& target) {
  check_alike(output, target);
  return output.to(at::kFloat).reshape(target.sizes());
}

}  // namespace trireme::objective
