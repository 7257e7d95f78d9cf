#pragma once
// Several data sets in given shares. An epoch has a number of samples of each part, by its weight. It
// continues each part where the epoch before ended. A pass over a part has every sample once, in its own
// order, before any is repeated. Passes do not depend on the epochs' bounds. Sample i of epoch e is computed
// from (seed, e, i) alone, in memory that does not depend on the sizes. Immutable; thread-safe.

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/data/dataset.h"

namespace trireme::data {

/// An epoch has `samples_per_epoch` samples, round(weight * samples) of each part (largest remainder, so that
/// the sum is exact): those of the first part first; the reader shuffles. The epoch of a part is the number
/// of its pass. Throws InvalidArgument: no part, weights that are not positive or whose sum is not 1 within
/// 1e-6, no sample; parts whose fields differ.
std::shared_ptr<const Dataset> mixture(std::vector<std::shared_ptr<const Dataset>> parts,
                                       const std::vector<double>& weights, std::int64_t samples_per_epoch,
                                       std::uint64_t seed);

/// How many of `samples` fall to each weight: largest remainder, the first of equal ones.
std::vector<std::int64_t> shares_of(std::int64_t samples, const std::vector<double>& weights);

}  // namespace trireme::data
