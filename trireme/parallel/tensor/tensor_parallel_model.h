#pragma once
// The tensor-parallel form of a model computes the same from parts of the same parameters, split over the
// ranks of a group. It can also compute from pieces of the same sequences, split over those of another
// (parallel/context/sequence_pieces.h), or from both. A trainer makes and checks the whole model, which can
// be deferred without memory (model/deferred.h), and makes the form of it. Names, first values and outputs
// are those of the whole.
//
// Shipped models have a row in tensor_parallel_model.cpp. A custom model has a form when it derives from
// TensorParallelizable, and is otherwise unchanged:
//
//   class Net : public model::Model, public parallel::TensorParallelizable {
//     TensorLimits tensor_limits() const override { return {.max_ranks = 8, .of_what = "8 experts"}; }
//     TensorParallelModel tensor_parallel(const TensorParallelOptions& options) const override {
//       return {.model = std::make_shared<NetInParts>(sizes_, options.group)};
//     }

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "trireme/batch/fields.h"
#include "trireme/comm/group.h"
#include "trireme/model/model.h"

namespace trireme::parallel {

/// Over which ranks layers and sequences are cut.
struct TensorParallelOptions {
  comm::Group group;
  bool cut_sequences = false;  ///< between layers ranks hold parts of each sequence (collectives.h)
  /// Ranks with pieces of the same sequences; none: sequences are whole. `group` may be one rank then.
  std::optional<comm::Group> context = std::nullopt;
};

struct TensorParallelModel {
  /// Parameters with the names of the whole model's. parameter_boxes() gives their place in the whole
  /// parameters.
  std::shared_ptr<model::Model> model = nullptr;
  /// The output is logits of so many classes in all, of which the rank has its part in the last dim; 0: the
  /// output is that of the whole model, the same on all ranks.
  std::int64_t cut_classes = 0;
  /// The output (batch, tokens, ...) is of the rank's own among so many tokens; 0: it is of whole samples.
  /// The input is always whole.
  std::int64_t cut_tokens = 0;
};

/// Number of ranks over which a model can be cut, and its bound.
struct TensorLimits {
  std::int64_t max_ranks = std::numeric_limits<std::int64_t>::max();
  std::string of_what = {};  ///< the quantity that bounds it, for messages: "4 heads"
  bool sequences = false;    ///< it can cut them
  std::int64_t tokens = 0;   ///< of each sequence, which can be cut over a context group; 0: none can
};

/// A model that can be cut.
class TensorParallelizable {
 public:
  TensorParallelizable() = default;
  TensorParallelizable(const TensorParallelizable&) = default;
  TensorParallelizable& operator=(const TensorParallelizable&) = default;
  virtual ~TensorParallelizable() = default;
  virtual TensorLimits tensor_limits() const = 0;
  /// Not collective, and without regard to values: Model::initialise gives them.
  virtual TensorParallelModel tensor_parallel(const TensorParallelOptions& options) const = 0;
};

/// None: the model has no tensor-parallel form.
std::optional<TensorLimits> tensor_limits(const model::Model& whole);

/// The form, deferred where the whole is, else with the values of the whole, which may go then. Not
/// collective. Throws InvalidArgument: a model that has none, or whose form has other parameters.
TensorParallelModel make_tensor_parallel(const model::Model& whole, const TensorParallelOptions& options);

/// Outputs of the form that was made with these options -> those of the whole model, on all ranks; gradients
/// pass through. Collective.
Fields whole_outputs(const TensorParallelModel& form, const Fields& outputs,
                     const TensorParallelOptions& options);

/// Of the targets of whole samples (batch, tokens, ...) those that the form's outputs have. Throws
/// InvalidArgument: targets of other sequences.
Fields own_targets(const TensorParallelModel& form, const Fields& targets,
                   const TensorParallelOptions& options);

}  // namespace trireme::parallel
