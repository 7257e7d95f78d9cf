#pragma once
// Readings of the GPUs of this host's ranks (nvml.h), for records of a run: "gpu_0_utilization" is that of
// the first rank. One thread.

#include <string>
#include <vector>

#include "trireme/telemetry/nvml.h"

namespace trireme::telemetry {

class DeviceGauge {
 public:
  /// Of the GPUs with these PCI bus ids. With none NVML is not loaded. A reading is `period_s` old at most.
  explicit DeviceGauge(std::vector<std::string> pci_bus_ids, double period_s = 1);

  /// Adds the fields of each GPU (add_fields()); none where NVML does not work, or a GPU is lost. Cost: some
  /// milliseconds for each GPU, once in `period_s`.
  void add_to(Record& record);

 private:
  const std::vector<std::string> pci_bus_ids_;
  const double period_s_;
  std::vector<std::optional<DeviceReading>> readings_;
  double read_s_ = 0;  ///< when; 0: not yet
};

}  // namespace trireme::telemetry
