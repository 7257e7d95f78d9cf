#include "trireme/data/internal/own_thread.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

namespace trireme::data {

void compute_on_this_thread_alone() {
  // libtorch sets a thread's OpenMP count to the global count once, at the first use. This call makes it
  // happen now, so that it does not overwrite the count below.
  at::get_num_threads();
  // at::set_num_threads() applies to all threads, OpenMP's function to the caller only. dlsym finds it in the
  // OpenMP library that libtorch has loaded, so that no other one is linked.
  using SetThreads = void (*)(int);
  if (const auto set = reinterpret_cast<SetThreads>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) set(1);
}

}  // namespace trireme::data
