// A pinned rank: pinned HOW. Prints its allowed cores and its number of torch threads. Also prints the
// allowed cores of a thread that started earlier, with a second context, and after both contexts end.
#include <ATen/Parallel.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/base/text.h"
#include "trireme/comm/context.h"
#include "trireme/topology/core_places.h"

namespace {

std::string here() { return trireme::topology::describe_cores(trireme::allowed_cores()); }

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return trireme::kExitUsage;
  try {
    const trireme::comm::ContextOptions options{.timeout_s = 30, .pin = argv[1]};
    std::atomic<bool> asked = false;
    std::string of_earlier;
    std::thread earlier([&] {
      while (!asked) std::this_thread::yield();
      of_earlier = here();
    });
    auto context = trireme::comm::Context::from_environment(options);
    asked = true;
    earlier.join();
    std::string line = trireme::text("rank ", context->rank(), ": ", here(), "; ", at::get_num_threads(),
                                     " threads; earlier ", of_earlier);
    {
      const auto second = trireme::comm::Context::join({}, options);
      line += trireme::text("; second ", here());
    }
    line += trireme::text("; first ", here());
    context->world().barrier();
    context.reset();
    std::printf("%s; afterwards %s\n", line.c_str(), here().c_str());
    return 0;
  } catch (const trireme::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return error.exit_code();
  }
}
