// Part of the optional CUDA object, libtrireme_cuda.so (nccl_cuda.cpp): the PCI bus address of a GPU.
#include <cuda_runtime.h>

#include "trireme/comm/internal/cuda_object.h"

extern "C" {

int trireme_cuda_pci_bus_id(int device, char* id, int bytes) {
  return cudaDeviceGetPCIBusId(id, bytes, device) == cudaSuccess ? 1 : 0;
}

}  // extern "C"
