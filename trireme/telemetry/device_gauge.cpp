#include "trireme/telemetry/device_gauge.h"

#include <utility>

#include "trireme/base/clock.h"

namespace trireme::telemetry {

DeviceGauge::DeviceGauge(std::vector<std::string> pci_bus_ids, double period_s)
    : pci_bus_ids_(std::move(pci_bus_ids)), period_s_(period_s) {}

void DeviceGauge::add_to(Record& record) {
  if (pci_bus_ids_.empty()) return;
  if (read_s_ == 0 || now_s() - read_s_ >= period_s_) {
    readings_.clear();
    for (const std::string& id : pci_bus_ids_) readings_.push_back(Nvml::of_process().read(id));
    read_s_ = now_s();
  }
  for (std::size_t i = 0; i < readings_.size(); ++i) {
    if (readings_[i]) add_fields(record, static_cast<int>(i), *readings_[i]);
  }
}

}  // namespace trireme::telemetry
