#pragma once
// The functions of the optional CUDA object libtrireme_cuda.so, and its search. The object is next to the
// program or in its ../lib, or at the path of TRIREME_CUDA_OBJECT. It is loaded once, when a GPU is there,
// and never unloaded. Thread-safe.

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "trireme/comm/device_graph.h"

extern "C" {
/// The caller owns one reference to the result. May throw c10::Error.
c10d::Backend* trireme_cuda_make_nccl(c10d::Store* store, int rank, int size, double timeout_s);
/// The caller owns it.
trireme::comm::DeviceGraph* trireme_cuda_make_graph(int device);
/// Writes "0000:3b:00.0" and its end into `id`, which has room for so many bytes. 0: there is no such device.
int trireme_cuda_pci_bus_id(int device, char* id, int bytes);
}

namespace trireme::comm {

struct CudaObject {
  std::string missing_because;  ///< empty when the functions are there
  decltype(&trireme_cuda_make_nccl) make_nccl = nullptr;
  decltype(&trireme_cuda_make_graph) make_graph = nullptr;
  decltype(&trireme_cuda_pci_bus_id) pci_bus_id = nullptr;
};

const CudaObject& cuda_object();

/// Loads the object whether a GPU is there or not: for the tests of a clean failure.
CudaObject load_cuda_object(const std::string& path);

}  // namespace trireme::comm
