// NVML of a driver that is too old: most functions have another name. Loaded through TRIREME_NVML.

extern "C" {

int nvmlInit_v2() { return 0; }
const char* nvmlErrorString(int /*code*/) { return "Unknown Error"; }
int nvmlDeviceGetCount(unsigned* count) {
  *count = 1;
  return 0;
}

}  // extern "C"
