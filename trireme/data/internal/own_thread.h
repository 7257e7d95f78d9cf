#pragma once
// A loading thread computes alone: the rows of a batch are already distributed over threads. Each thread that
// calls libtorch's parallel operations gets its own OpenMP team, as large as the rank's. Its members spin
// between two calls, on the cores that the training step needs.

namespace trireme::data {

/// From now on libtorch's operations on the calling thread start no team; on others, nothing changes. Without
/// effect where libtorch is built without OpenMP.
void compute_on_this_thread_alone();

}  // namespace trireme::data
