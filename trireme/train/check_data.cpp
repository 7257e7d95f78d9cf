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

/// The first sample stands for all; the others are looked at when they are read.
void check_split(const data::DataSource& data, const data::Dataset& split,
                 const objective::Objective& objective, const std::string& who) {
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
  objective.check_target(batch.target[0], who);
  objective.check_batch(batch, {&first, 1});
}

}  // namespace

void check_data(const data::DataSource& data, const objective::Objective& objective) {
  const auto name_of = [&](const char* number, const std::string& split) {
    return text("data set ", data.name, ", ", number, " split (", split, ")");
  };
  require(data.train != nullptr, "data set ", data.name, " has no training data");
  check_split(data, *data.train, objective, name_of("first", "train"));
  if (data.test) check_split(data, *data.test, objective, name_of("second", data.held_out));
}

}  // namespace trireme::train
