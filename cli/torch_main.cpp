// `trireme-torch`: the commands of `trireme` that need tensors. It appears under that name.

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "cli/frame.h"
#include "cli/launch/program_path.h"
#include "cli/torch_program.h"
#include "trireme/base/stop_notice.h"

namespace {

/// Skips the destructors of libtorch's tables, which take a quarter of a short command's time. They run if a
/// preloaded library, such as a profiler, may need the regular end.
[[noreturn]] void end_process(int code) {
#ifndef __SANITIZE_ADDRESS__  // which looks for leaks at the end
  const char* preloaded = std::getenv("LD_PRELOAD");
  if (preloaded == nullptr || *preloaded == '\0') {
    std::cout.flush();
    std::fflush(nullptr);
    std::_Exit(code);
  }
#endif
  std::exit(code);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace trireme::cli;
  trireme::end_with_notice("trireme: stopped by a signal\n");
  end_process(end_well("trireme", "a bug of trireme", [&] {
    // The launcher process stays small.
    const auto find_launcher = [] { return find_own_program("trireme"); };
    const Program program = torch_program({.name = "trireme", .find_launcher = find_launcher});
    return run_program(program, {argv + 1, argv + argc});
  }));
}
