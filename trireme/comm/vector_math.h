#pragma once
// Ranks and libtorch's own threads call exp, sqrt and their like at the same time.

namespace trireme::comm {

/// Calls every function that libtorch takes from MKL's vector library once, on one element, in f32 and f64.
/// MKL (as libtorch 2.9 to 2.13 brings it) chooses a function's kernel in its first call. If several threads
/// make that call at once, one of them may get 11 correct bits instead of 24, without an error. This lasts
/// for the whole of its call (pytorch/pytorch issue 188792). Joining a world and run_ranks_as_threads() call
/// this function. A program without either calls it before its threads start. A second call costs nothing;
/// the first below a millisecond. Any thread.
void settle_vector_math();

}  // namespace trireme::comm
