#pragma once
// Work of a device that is recorded once and then launched as one graph: CUDA graphs (NVIDIA, CUDA C++
// Programming Guide, "CUDA Graphs"). Used by parallel/graphed_step.h, which describes the capture of a step.
// One thread.

#include <c10/core/Device.h>

#include <memory>
#include <string>

namespace trireme::comm {

class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// From here on, work that is issued on the device's current stream is recorded and not done; that stream
  /// is not the default one. Memory that is allocated meanwhile belongs to the graph and is written by each
  /// replay.
  virtual void begin() = 0;
  /// Throws c10::Error: something was issued that cannot be recorded, such as a read on the host.
  virtual void end() = 0;
  /// Does all of it, on the current stream. Cost: one launch.
  virtual void replay() = 0;
};

/// Makes an empty graph for that device.
using MakeDeviceGraph = std::unique_ptr<DeviceGraph> (*)(c10::Device device);

/// For devices of other makers; CUDA's are there. Replaces the one before.
void register_device_graphs(c10::DeviceType type, MakeDeviceGraph make);

/// Why there are no graphs on that device; empty where there are.
std::string graphs_unavailable_because(c10::Device device);

/// Throws InvalidArgument with that reason.
std::unique_ptr<DeviceGraph> make_device_graph(c10::Device device);

}  // namespace trireme::comm
