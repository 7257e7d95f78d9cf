#pragma once
// How much memory the program asks for at once: its operator new notes it. Each thread has its own.

#include <cstddef>

namespace trireme::ps {

/// Of this thread, since it was last set to 0; stays 0 under a sanitizer.
std::size_t& largest_allocation();

}  // namespace trireme::ps
