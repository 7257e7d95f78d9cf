#pragma once
// Ranks and libtorch's own threads call exp, sqrt and their like at the same time.

namespace trireme::comm {

/// Calls every function that libtorch takes from MKL's vector library once, on one element, in f32 and f64.
/// MKL (as libtorch 2.9 to 2.13 brings it) chooses a function's kernel in its first call; where several
/// threads make that call at once, one of them may get an approximation with 11 bits instead of 24 for the
/// whole of its call, without an error (pytorch/pytorch issue 188792). Joining a world and
/// run_ranks_as_threads() do it; a program without either does it before its threads start. A second call
/// costs nothing; the first below a millisecond. Any thread.
void settle_vector_math();

}  // namespace trireme::comm
