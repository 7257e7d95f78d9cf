#pragma once
// NVIDIA's management library (NVML, libnvidia-ml.so.1), loaded when a value is requested: readings of a GPU.
// The functions are declared here after NVIDIA's "NVML API Reference Guide", so that no toolkit is needed.
// Memory and utilization are those of all processes on the GPU. Thread-safe.

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/base/optional_object.h"
#include "trireme/telemetry/sink.h"

namespace trireme::telemetry {

/// Readings that a GPU does not have are empty: parts of a GPU (MIG), for example, have no utilization.
struct DeviceReading {
  std::string name;  ///< "NVIDIA H100 80GB HBM3"
  std::optional<double>
      utilization;  ///< share of the library's last period (some 0.2 s) in which a kernel ran
  std::optional<std::int64_t> memory_used_bytes, memory_total_bytes;
  std::optional<double> temperature_c, power_w;
};

class Nvml {
 public:
  /// Loads a library and starts it. missing_because() has the failure.
  explicit Nvml(const std::string& path);
  /// That of this process: the library of the variable TRIREME_NVML, else libnvidia-ml.so.1. Loaded by the
  /// first call.
  static const Nvml& of_process();

  /// Empty where the library works; else the fault and the remedy.
  const std::string& missing_because() const { return object_.missing_because; }
  /// "550.54.15"; empty where it is not known.
  std::string driver_version() const;
  /// All of this host, for any CUDA_VISIBLE_DEVICES; 0 where the library does not work.
  int num_devices() const;
  /// In the order of the library, which is that of PCI bus ids. Empty: there is none, or it is lost. Cost:
  /// some calls of the driver, 1 ms or so.
  std::optional<DeviceReading> read(int index) const;
  /// Of the GPU with that PCI bus id ("0000:3b:00.0"), as CUDA has it.
  std::optional<DeviceReading> read(const std::string& pci_bus_id) const;

 private:
  struct Functions;
  struct Device;  ///< the library's own

  void start(const std::string& path);
  std::optional<DeviceReading> read(Device* device) const;

  OptionalObject object_;
  const Functions* functions_ = nullptr;  ///< null: they are not all there
};

/// Adds a reading to a record: "gpu_0_utilization", "gpu_0_memory_used_bytes", "gpu_0_memory_total_bytes",
/// "gpu_0_temperature_c", "gpu_0_power_w".
void add_fields(Record& record, int number, const DeviceReading& reading);

/// "87 %, 12 GiB of 80 GiB, 65 C, 310 W": a reading, for people.
std::string describe(const DeviceReading& reading);

}  // namespace trireme::telemetry
