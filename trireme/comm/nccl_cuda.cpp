// The optional CUDA object, libtrireme_cuda.so: the code that needs the CUDA toolkit to compile.
// nccl_backend.cpp loads it on hosts with a GPU and finds its functions by name: internal/cuda_object.h.
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "trireme/base/clock.h"
#include "trireme/comm/internal/cuda_object.h"

extern "C" {

c10d::Backend* trireme_cuda_make_nccl(c10d::Store* store, int rank, int size, double timeout_s) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = trireme::whole_milliseconds(timeout_s);
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      c10::intrusive_ptr<c10d::Store>::reclaim_copy(store), rank, size, std::move(options));
  return group.release();
}

}  // extern "C"
