#include "trireme/telemetry/nvml.h"

#include <array>
#include <cmath>
#include <cstdlib>
#include <memory>

#include "trireme/base/text.h"

namespace trireme::telemetry {
namespace {

// Numbers of nvmlReturn_t.
constexpr int kSuccess = 0, kDriverNotLoaded = 9, kVersionMismatch = 18;
constexpr unsigned kTemperatureOfGpu = 0;  // NVML_TEMPERATURE_GPU
constexpr unsigned kNameBytes = 96;        // NVML_DEVICE_NAME_V2_BUFFER_SIZE

struct Utilization {  // nvmlUtilization_t, in percent
  unsigned gpu, memory;
};
struct Memory {  // nvmlMemory_t
  unsigned long long total, free, used;
};

std::string advice_for(int code) {
  if (code == kVersionMismatch)
    return "the driver was updated and the kernel has the earlier one loaded: restart the host, or load its "
           "modules again";
  if (code == kDriverNotLoaded) return "load the kernel module: modprobe nvidia";
  return "see whether nvidia-smi works";
}

}  // namespace

struct Nvml::Functions {
  int (*init)();
  const char* (*error_string)(int code);
  int (*driver_version)(char* version, unsigned bytes);
  int (*count)(unsigned* count);
  int (*by_index)(unsigned index, Device** device);
  int (*by_pci_bus_id)(const char* id, Device** device);
  int (*name)(Device* device, char* name, unsigned bytes);
  int (*utilization)(Device* device, Utilization* utilization);
  int (*memory)(Device* device, Memory* memory);
  int (*temperature)(Device* device, unsigned sensor, unsigned* celsius);
  int (*power)(Device* device, unsigned* milliwatts);
};

Nvml::Nvml(const std::string& path) { start(path); }

void Nvml::start(const std::string& path) {
  object_ = load_optional_object(path, /*global=*/false, "it comes with NVIDIA's driver");
  if (!object_.missing_because.empty()) return;
  auto found = std::make_unique<Functions>();
  std::string missing;
  const auto find = [&](const char* name, auto& function) {
    if (!object_.find(name, function) && missing.empty()) missing = name;
  };
  find("nvmlInit_v2", found->init);
  find("nvmlErrorString", found->error_string);
  find("nvmlSystemGetDriverVersion", found->driver_version);
  find("nvmlDeviceGetCount_v2", found->count);
  find("nvmlDeviceGetHandleByIndex_v2", found->by_index);
  find("nvmlDeviceGetHandleByPciBusId_v2", found->by_pci_bus_id);
  find("nvmlDeviceGetName", found->name);
  find("nvmlDeviceGetUtilizationRates", found->utilization);
  find("nvmlDeviceGetMemoryInfo", found->memory);
  find("nvmlDeviceGetTemperature", found->temperature);
  find("nvmlDeviceGetPowerUsage", found->power);
  if (!missing.empty()) {
    object_.missing_because = text(path, " has no function ", missing,
                                   "; expected NVML of a driver from 2014 (340) on: update NVIDIA's driver");
    return;
  }
  if (const int code = found->init(); code != kSuccess) {
    object_.missing_because =
        text(path, " cannot be started: ", found->error_string(code), " (", code, "); ", advice_for(code));
    return;
  }
  functions_ = found.release();  // the library is never unloaded
}

const Nvml& Nvml::of_process() {
  static const Nvml kNvml([] {
    const char* given = std::getenv("TRIREME_NVML");
    return std::string(given != nullptr ? given : "libnvidia-ml.so.1");
  }());
  return kNvml;
}

std::string Nvml::driver_version() const {
  std::array<char, 80> version = {};
  if (functions_ == nullptr || functions_->driver_version(version.data(), version.size()) != kSuccess)
    return {};
  return version.data();
}

int Nvml::num_devices() const {
  unsigned count = 0;
  if (functions_ == nullptr || functions_->count(&count) != kSuccess) return 0;
  return static_cast<int>(count);
}

std::optional<DeviceReading> Nvml::read(int index) const {
  Device* device = nullptr;
  if (functions_ == nullptr || functions_->by_index(static_cast<unsigned>(index), &device) != kSuccess)
    return {};
  return read(device);
}

std::optional<DeviceReading> Nvml::read(const std::string& pci_bus_id) const {
  Device* device = nullptr;
  if (functions_ == nullptr || functions_->by_pci_bus_id(pci_bus_id.c_str(), &device) != kSuccess) return {};
  return read(device);
}

std::optional<DeviceReading> Nvml::read(Device* device) const {
  std::array<char, kNameBytes> name = {};
  if (functions_->name(device, name.data(), name.size()) != kSuccess) return {};
  DeviceReading reading{.name = name.data(),
                        .utilization = {},
                        .memory_used_bytes = {},
                        .memory_total_bytes = {},
                        .temperature_c = {},
                        .power_w = {}};
  if (Utilization rates{}; functions_->utilization(device, &rates) == kSuccess)
    reading.utilization = rates.gpu / 100.0;
  if (Memory memory{}; functions_->memory(device, &memory) == kSuccess) {
    reading.memory_used_bytes = static_cast<std::int64_t>(memory.used);
    reading.memory_total_bytes = static_cast<std::int64_t>(memory.total);
  }
  unsigned number = 0;
  if (functions_->temperature(device, kTemperatureOfGpu, &number) == kSuccess) reading.temperature_c = number;
  if (functions_->power(device, &number) == kSuccess) reading.power_w = number / 1000.0;
  return reading;
}

void add_fields(Record& record, int number, const DeviceReading& reading) {
  const auto add = [&](const char* what, const auto& value) {
    if (value) record.fields.emplace_back(text("gpu_", number, "_", what), *value);
  };
  add("utilization", reading.utilization);
  add("memory_used_bytes", reading.memory_used_bytes);
  add("memory_total_bytes", reading.memory_total_bytes);
  add("temperature_c", reading.temperature_c);
  add("power_w", reading.power_w);
}

std::string describe(const DeviceReading& reading) {
  std::vector<std::string> parts;
  const auto bytes = [](std::int64_t count) { return human_bytes(static_cast<std::uint64_t>(count)); };
  if (reading.utilization) parts.push_back(text(std::lround(100 * *reading.utilization), " %"));
  if (reading.memory_used_bytes && reading.memory_total_bytes)
    parts.push_back(text(bytes(*reading.memory_used_bytes), " of ", bytes(*reading.memory_total_bytes)));
  if (reading.temperature_c) parts.push_back(text(std::lround(*reading.temperature_c), " C"));
  if (reading.power_w) parts.push_back(text(std::lround(*reading.power_w), " W"));
  return join(parts);
}

}  // namespace trireme::telemetry
