// NVML for hosts without a GPU: two GPUs with known values. The second one does not support reading its
// power. The environment sets errors as numbers of nvmlReturn_t. STAND_IN_NVML_INIT is the result of
// nvmlInit_v2, and STAND_IN_NVML_READ that of reading a value. Loaded through TRIREME_NVML.
#include <cstdlib>
#include <cstring>

namespace {

struct Device {
  const char *pci_bus_id, *name;
  unsigned utilization;
  unsigned long long used, total;
  unsigned temperature, milliwatts;  ///< 0: not supported
};
constexpr unsigned long long kGib = 1ULL << 30;
Device devices[] = {{"00000000:3B:00.0", "Stand-in A", 87, 12 * kGib, 80 * kGib, 65, 310'500},
                    {"00000000:5E:00.0", "Stand-in B", 9, 1 * kGib, 24 * kGib, 41, 0}};
constexpr int kInvalidArgument = 2, kNotSupported = 3, kNotFound = 6;

int code_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? 0 : std::atoi(value);
}
int of_reading() { return code_of("STAND_IN_NVML_READ"); }

}  // namespace

extern "C" {

int nvmlInit_v2() { return code_of("STAND_IN_NVML_INIT"); }
const char* nvmlErrorString(int code) {
  return code == 18 ? "Driver/library version mismatch" : code == 15 ? "GPU is lost" : "Unknown Error";
}
int nvmlSystemGetDriverVersion(char* version, unsigned bytes) {
  std::strncpy(version, "550.0.stand-in", bytes);
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device** device) {
  if (index >= 2) return kInvalidArgument;
  *device = &devices[index];
  return 0;
}
/// CUDA's PCI ids have a domain of four digits and lower-case letters.
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, Device** device) {
  for (Device& each : devices) {
    const std::size_t length = std::strlen(id), whole = std::strlen(each.pci_bus_id);
    if (length > whole || strcasecmp(each.pci_bus_id + whole - length, id) != 0) continue;
    *device = &each;
    return 0;
  }
  return kNotFound;
}
int nvmlDeviceGetName(Device* device, char* name, unsigned bytes) {
  std::strncpy(name, device->name, bytes);
  return of_reading();
}
int nvmlDeviceGetUtilizationRates(Device* device, unsigned* percent) {
  percent[0] = device->utilization;
  percent[1] = 50;
  return of_reading();
}
int nvmlDeviceGetMemoryInfo(Device* device, unsigned long long* total_free_used) {
  total_free_used[0] = device->total;
  total_free_used[1] = device->total - device->used;
  total_free_used[2] = device->used;
  return of_reading();
}
int nvmlDeviceGetTemperature(Device* device, unsigned sensor, unsigned* celsius) {
  if (sensor != 0) return kInvalidArgument;
  *celsius = device->temperature;
  return of_reading();
}
int nvmlDeviceGetPowerUsage(Device* device, unsigned* milliwatts) {
  if (device->milliwatts == 0) return kNotSupported;
  *milliwatts = device->milliwatts;
  return of_reading();
}

}  // extern "C"
