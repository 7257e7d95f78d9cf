#pragma once
// Records the largest allocation of the program's operator new, separately for each thread.

#include <cstddef>

namespace trireme::ps {

/// The largest allocation of this thread since it was last set to 0. Always 0 with a sanitizer.
std::size_t& largest_allocation();

}  // namespace trireme::ps
