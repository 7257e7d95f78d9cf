// Preloaded library. It delays this process's part of a distributed backward by TRIREME_TEST_BEGIN_S seconds,
// before libtorch clears the calls of an earlier one.

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace {
/// torch::distributed::autograd::DistAutogradContext::clearOutstandingRpcs()
constexpr const char* kForget =
    "_ZN5torch11distributed8autograd19DistAutogradContext20clearOutstandingRpcsEv";
}  // namespace

extern "C" void forget_calls(void* context) asm(
    "_ZN5torch11distributed8autograd19DistAutogradContext20clearOutstandingRpcsEv");

extern "C" void forget_calls(void* context) {
  const char* seconds = std::getenv("TRIREME_TEST_BEGIN_S");
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds == nullptr ? 0 : std::atof(seconds)));
  reinterpret_cast<void (*)(void*)>(::dlsym(RTLD_NEXT, kForget))(context);
}
