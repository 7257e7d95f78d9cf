#pragma once
// Batches of samples that cannot simply be stacked: data sets whose samples differ in size. Both functions
// return a data set around another, so training and evaluation get the same batches. They are the outermost
// wrappers: a subset of a padded data set pads, a concatenation does not. Results are immutable, and
// thread-safe if their data sets are.
//
// A batch is one rank's part of one micro-batch: its padding depends on the split. A model that honours masks
// gives the same numbers for any split nevertheless. So does an objective that leaves padding out of loss and
// count (objective.ignored_classes, or its own counts_by_value()).

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/data/dataset.h"

namespace trireme::data {

/// A field whose tensors are brought to one size, that of the largest in the batch in each dim, by values
/// after their own.
struct Padding {
  std::string field;  ///< of input, target or both; "input" or "target" where it has no name
  double value = 0;
  std::string mask = {};         ///< a field to add: Bool, of the same shape, true where there was a value
  std::int64_t multiple_of = 1;  ///< sizes are rounded up to: a pipeline asks its stages once per size
  std::int64_t length = 0;       ///< the first dim of every sample becomes this long; 0: as the batch needs
};

/// Throws InvalidArgument: nothing to pad, sizes below 1; a field that samples do not have. Its samples throw
/// DataError, with their number, when they are longer than `length`.
std::shared_ptr<const Dataset> padded(std::shared_ptr<const Dataset> samples, std::vector<Padding> paddings);

/// Samples, at least one, to a batch of them: every field has a first dim of samples. Called by worker
/// threads.
using Collate = std::function<Example(std::span<const Example> samples)>;
enum class BatchSizes { kVary, kSame };  ///< the tensors', from batch to batch of as many samples

/// Batches as `collate` makes them. They throw DataError where it returns another number of rows.
std::shared_ptr<const Dataset> collated(std::shared_ptr<const Dataset> samples, Collate collate,
                                        BatchSizes sizes = BatchSizes::kVary);

}  // namespace trireme::data
