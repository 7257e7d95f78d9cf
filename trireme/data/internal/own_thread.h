#pragma once
// A loading thread computes alone: rows of a batch are shared out among threads already, and each thread that
// calls libtorch's parallel operations gets an OpenMP team of its own, as large as the rank's, whose members
// spin between two calls on the cores that the step computes on.

namespace trireme::data {

/// From now on libtorch's operations on the calling thread start no team; on others, nothing changes. Without
/// effect where libtorch is built without OpenMP.
void compute_on_this_thread_alone();

}  // namespace trireme::data
