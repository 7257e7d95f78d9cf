// The optional CUDA object, libtrireme_cuda.so: what needs the CUDA toolkit to compile. It is loaded by
// nccl_backend.cpp where a GPU is, and its functions are found by name: internal/cuda_object.h.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>

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

void* trireme_cuda_allocate_pinned(std::size_t bytes) {
  void* memory = nullptr;
  return cudaHostAlloc(&memory, bytes, cudaHostAllocDefault) == cudaSuccess ? memory : nullptr;
}

void trireme_cuda_free_pinned(void* memory) { cudaFreeHost(memory); }

const char* trireme_cuda_prefetch(void* device_memory, const void* pinned_memory, std::size_t bytes,
                                  int device) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  const auto stream = at::cuda::getStreamFromPool(false, static_cast<c10::DeviceIndex>(device));
  const auto status =
      cudaMemcpyAsync(device_memory, pinned_memory, bytes, cudaMemcpyHostToDevice, stream.stream());
  if (status != cudaSuccess) return cudaGetErrorString(status);
  // Whatever the current stream does next sees the copy.
  at::cuda::CUDAEvent copied;
  copied.record(stream);
  copied.block(at::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)));
  return nullptr;
}

}  // extern "C"
