#include "trireme/data/internal/own_thread.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

namespace trireme::data {

void compute_on_this_thread_alone() {
  // Once, libtorch gives a thread that it meets the number that holds for all.
  at::get_num_threads();
  // at::set_num_threads() is for all threads. OpenMP's own is for the caller; it is that of the library that
  // libtorch has loaded, whichever that is, so that nothing is linked against another.
  using SetThreads = void (*)(int);
  if (const auto set = reinterpret_cast<SetThreads>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) set(1);
}

}  // namespace trireme::data
