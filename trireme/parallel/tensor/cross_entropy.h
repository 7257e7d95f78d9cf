#pragma once
// The cross entropy of logits whose classes, the vocabulary, are split over the ranks of a group: no rank
// ever holds more logits than its own. Two all-reduces of a few numbers per target go between the ranks, the
// greatest logit and the sums; the gradient of a rank's logits needs none (Shoeybi et al., arXiv 1909.08053,
// section 3). Values are those of objective.name = "cross_entropy". Collective; see collectives.h.

#include <ATen/core/Tensor.h>

#include <vector>

#include "trireme/comm/group.h"

namespace trireme::parallel {

struct VocabularyLossOptions {
  std::int64_t vocabulary = 0;                     ///< classes in all
  double label_smoothing = 0;                      ///< share spread over all classes
  std::vector<std::int64_t> ignored_classes = {};  ///< targets that do not count
};

/// Logits (..., classes of this rank), floating point, as VocabularyParallelEmbedding::logits makes them.
/// Targets (...), i64, the same on all ranks. Returns the sum of the losses, without dims, the same on all
/// ranks: f64 for f64, else f32. Its gradient cannot be derived once more. Throws InvalidArgument: other
/// shapes or types, or a target that is neither a class nor ignored.
at::Tensor vocabulary_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                    const comm::Group& group, const VocabularyLossOptions& options);

}  // namespace trireme::parallel
