#include <algorithm>
#include <cmath>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/foreign_error.h"
#include "trireme/train/step/internal/check.h"

namespace trireme::train {
namespace {

/// The only sample of a batch; `what` names the part in errors.
Fields sample_of(const Fields& batch, const char* what, const std::string& who) {
  return batch.map([&](const at::Tensor& tensor) {
    require(tensor.dim() >= 1 && tensor.size(0) == 1, who, ": a batch of 1 sample has ", what, " that are ",
            batch::to_text(batch), "; expected a first dim of 1");
    return tensor[0];
  });
}

/// Checks the first sample only. The others are checked when they are read.
void check_split(const data::DataSource& data, const data::TrainingData& split,
                 const objective::Objective& objective, const std::string& who) {
  require(split.size() >= 1, who, " has no samples");
  const std::int64_t first = 0;
  const data::Example batch =
      as_data_error_of([&] { return text(who, ": sample 0"); }, [&] { return split.trial_batch(1); });
  require(batch.rows() == 1, who, ": a batch of 1 sample has neither inputs nor targets");
  const Fields input = sample_of(batch.input, "inputs", who),
               target = sample_of(batch.target, "targets", who);
  const bool has_shape = input.size() == 1 && !(data.input_shape.empty() && input.has_names());
  require(!has_shape || input->sizes() == at::IntArrayRef(data.input_shape), who,
          ": the input of sample 0 is ", batch::to_text(input),
          ", and samples of this data set have the shape ", at::IntArrayRef(data.input_shape));
  objective.check_targets(target, who);
  objective.check_batch(batch, {&first, 1});
}

}  // namespace

void check_count(const objective::Objective& objective, const data::Example& batch, double count_of_sample) {
  if (objective.counts_by_value()) return;
  const double found = objective.count_all(batch),
               expected = count_of_sample * static_cast<double>(batch.rows());
  if (std::abs(found - expected) <= 1e-6 * expected) return;
  throw DataError(text("the targets of a batch of ", batch.rows(), " samples, ", batch::to_text(batch.target),
                       ", count ", found, "; expected ", expected,
                       ", as many times what those of sample 0 "
                       "count. Where sizes vary, an objective leaves padding out and says so: "
                       "objective.ignored_classes, or its own counts_by_value()"));
}

void check_data(const data::DataSource& data, const objective::Objective& objective) {
  const auto name_of = [&](const char* number, const std::string& split) {
    return text("data set ", data.name, ", ", number, " split (", split, ")");
  };
  require(data.train != nullptr, "data set ", data.name, " has no training data");
  check_split(data, *data.train, objective, name_of("first", "train"));
  if (data.test) check_split(data, *data.test, objective, name_of("second", data.held_out));
}

void warn_of_data(const RunConfig& config, const data::DataSource& data, const Log& log) {
  for (const std::string& note : data.notes) log.warning(note);
  const std::int64_t samples = data.train->size(), batch = config.train.global_batch;
  if (batch <= samples) return;
  log.warning("train.global_batch = ", batch, " is more than the ", samples, " training samples of ",
              data.name, ": each step is a whole epoch, of all of them");
}

}  // namespace trireme::train
