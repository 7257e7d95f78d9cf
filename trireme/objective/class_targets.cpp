#include "trireme/objective/internal/class_targets.h"

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/objective/internal/targets.h"

namespace trireme::objective {

at::Tensor rows_of(const at::Tensor& output, const at::Tensor& target) {
  require(output.dim() >= 2 && output.numel() / output.size(-1) == target.numel(),
          "the model makes logits of shape ", output.sizes(), " for ", target.numel(), " targets of shape ",
          target.sizes(), "; expected a row of logits for each target");
  return output.to(at::kFloat).flatten(0, -2);
}

ClassTargets::ClassTargets(ClassLossWords words, const data::DataSource& data,
                           std::vector<std::int64_t> ignored)
    : words_(std::move(words)),
      num_classes_(data.num_classes),
      per_sample_(data.targets_per_sample),
      ignored_(std::move(ignored)) {
  require(num_classes_ >= 1 && per_sample_ >= 0, "data set ", data.name, " has ", num_classes_,
          " classes and ", per_sample_, " targets per sample; the loss, ", words_.loss,
          ", needs at least 1 of each; set data.num_classes, or for targets that are numbers ",
          words_.for_numbers);
}

bool ClassTargets::is_ignored(std::int64_t target) const {
  return std::ranges::find(ignored_, target) != ignored_.end();
}

void ClassTargets::check_target(const at::Tensor& target, const std::string& who) const {
  const std::int64_t expected = per_sample_ == 0 ? target.numel() : per_sample_;
  require(target.scalar_type() == at::kLong && target.numel() == expected, who,
          ": the target of sample 0 is ", kind_of(target), ", and the loss, ", words_.loss, ", takes ",
          expected, expected == 1 ? " target" : " targets", " per sample, classes from 0 to ",
          num_classes_ - 1, ": expected Long of shape ", expected == 1 ? "[]" : text("[", expected, "]"),
          "; for targets that are numbers ", words_.for_numbers);
}

void ClassTargets::check_output(const at::Tensor& output, const at::Tensor& target) const {
  const std::int64_t rows = output.dim() < 2 ? 0 : output.numel() / output.size(-1);
  require(rows == target.numel() && output.size(-1) == num_classes_, "a sample has ", target.numel(),
          " targets of ", num_classes_, " classes, and the model makes of it a tensor of shape ",
          output.sizes());
}

void ClassTargets::check_batch(const data::Example& batch, std::span<const std::int64_t> indices) const {
  check_rows(batch, indices);
  if (indices.empty()) return;
  const at::Tensor targets = at::Tensor(batch.target).contiguous();
  if (targets.scalar_type() != at::kLong) {
    throw DataError(text(batch_in_words(indices), "targets that are ", kind_of(targets),
                         "; expected classes, which are Long"));
  }
  const std::span values(targets.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(targets.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if ((values[i] >= 0 && values[i] < num_classes_) || is_ignored(values[i])) continue;
    throw DataError(text("sample ", indices[i / (values.size() / indices.size())],
                         " of the data set is of class ", values[i], ", and the model knows 0 to ",
                         num_classes_ - 1));
  }
}

}  // namespace trireme::objective
