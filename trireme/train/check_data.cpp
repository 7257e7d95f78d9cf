#include <algorithm>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/train/internal/check.h"

namespace trireme::train {
namespace {

/// "Long of shape [64]"
std::string kind_of(const at::Tensor& tensor) {
  return text(tensor.scalar_type(), " of shape ", tensor.sizes());
}

/// What the loss takes of a sample.
std::string targets_in_words(const data::DataSource& data) {
  const std::int64_t count = data.targets_per_sample;
  return text("the loss, a cross entropy, takes ", count, count == 1 ? " target" : " targets",
              " per sample, classes from 0 to ", data.num_classes - 1, ": expected Long of shape ",
              count == 1 ? "[]" : text("[", count, "]"));
}

/// The first sample stands for all; the others are looked at when they are read.
void check_split(const data::DataSource& data, const data::Dataset& split, const std::string& who) {
  require(split.size() >= 1, who, " has no samples");
  const std::int64_t first = 0;
  const data::Example batch = split.get_batch({&first, 1});
  require(batch.input.dim() >= 1 && batch.input.size(0) == 1, who,
          ": a batch of 1 sample has inputs that are ", kind_of(batch.input), "; expected a first dim of 1");
  const at::Tensor input = batch.input[0];
  require(input.sizes() == at::IntArrayRef(data.input_shape), who, ": the input of sample 0 is ",
          kind_of(input), ", and samples of this data set have the shape ",
          at::IntArrayRef(data.input_shape));
  require(batch.target.dim() >= 1 && batch.target.size(0) == 1, who,
          ": a batch of 1 sample has targets that are ", kind_of(batch.target),
          "; expected a first dim of 1");
  const at::Tensor target = batch.target[0];
  require(target.scalar_type() == at::kLong && target.numel() == data.targets_per_sample, who,
          ": the target of sample 0 is ", kind_of(target), ", and ", targets_in_words(data));
  data::check_targets(batch, {&first, 1}, data.num_classes);
}

}  // namespace

void check_data(const data::DataSource& data) {
  const auto name_of = [&](const char* number, const std::string& split) {
    return text("data set ", data.name, ", ", number, " split (", split, ")");
  };
  require(data.train != nullptr, "data set ", data.name, " has no training data");
  require(data.num_classes >= 1 && data.targets_per_sample >= 1, "data set ", data.name, " has ",
          data.num_classes, " classes and ", data.targets_per_sample,
          " targets per sample; the loss, a cross entropy, needs at least 1 of each");
  check_split(data, *data.train, name_of("first", "train"));
  if (data.test) check_split(data, *data.test, name_of("second", data.held_out));
}

}  // namespace trireme::train
