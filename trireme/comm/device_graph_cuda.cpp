// CUDA graphs: a part of the optional CUDA object (internal/cuda_object.h).
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>

#include "trireme/comm/internal/cuda_object.h"

namespace {

class CudaGraph final : public trireme::comm::DeviceGraph {
 public:
  explicit CudaGraph(int device) : device_(static_cast<c10::DeviceIndex>(device)) {}
  void begin() override {
    const c10::cuda::CUDAGuard guard(device_);
    // What is drawn in a replay follows from the seed of then.
    graph_.register_generator_state(at::cuda::detail::getDefaultCUDAGenerator(device_));
    // Other threads, such as loaders and communication, may use the device meanwhile.
    graph_.capture_begin(at::cuda::graph_pool_handle(), cudaStreamCaptureModeThreadLocal);
  }
  void end() override { graph_.capture_end(); }
  void replay() override { graph_.replay(); }

 private:
  const c10::DeviceIndex device_;
  at::cuda::CUDAGraph graph_;
};

}  // namespace

extern "C" {

trireme::comm::DeviceGraph* trireme_cuda_make_graph(int device) { return new CudaGraph(device); }

}  // extern "C"
