#include "trireme/comm/device_graph.h"

#include <map>
#include <mutex>

#include "trireme/base/error.h"
#include "trireme/comm/device.h"
#include "trireme/comm/internal/cuda_object.h"

namespace trireme::comm {
namespace {

std::unique_ptr<DeviceGraph> make_cuda_graph(c10::Device device) {
  return std::unique_ptr<DeviceGraph>(cuda_object().make_graph(device.index()));
}

struct Makers {
  std::mutex mutex;
  std::map<c10::DeviceType, MakeDeviceGraph> of;
};

Makers& makers() {
  static Makers all{.mutex = {}, .of = {{c10::kCUDA, make_cuda_graph}}};
  return all;
}

MakeDeviceGraph maker_for(c10::DeviceType type) {
  Makers& all = makers();
  const std::lock_guard lock(all.mutex);
  const auto found = all.of.find(type);
  return found == all.of.end() ? nullptr : found->second;
}

}  // namespace

void register_device_graphs(c10::DeviceType type, MakeDeviceGraph make) {
  Makers& all = makers();
  const std::lock_guard lock(all.mutex);
  all.of[type] = make;
}

std::string graphs_unavailable_because(c10::Device device) {
  if (maker_for(device.type()) == nullptr)
    return text("device \"", name_of(device.type()), "\" has no graphs");
  return device.is_cuda() ? cuda_object().missing_because : std::string();
}

std::unique_ptr<DeviceGraph> make_device_graph(c10::Device device) {
  const std::string reason = graphs_unavailable_because(device);
  require(reason.empty(), "steps cannot be captured in graphs: ", reason);
  return maker_for(device.type())(device);
}

}  // namespace trireme::comm
