// `trireme-torch`: the commands with tensors of `trireme`, whose name it bears.

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "cli/frame.h"
#include "cli/launch/program_path.h"
#include "cli/torch_program.h"
#include "trireme/base/stop_notice.h"

namespace {

/// Without the destructors of libtorch's tables, which take a quarter of what a short command takes in all.
[[noreturn]] void end_process(int code) {
#ifdef __SANITIZE_ADDRESS__  // which looks for leaks behind them
  std::exit(code);
#else
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  using namespace trireme::cli;
  trireme::end_with_notice("trireme: stopped by a signal\n");
  end_process(end_well("trireme", "a bug of trireme", [&] {
    // A launcher of many ranks stays small.
    const auto find_launcher = [] { return find_own_program("trireme"); };
    const Program program = torch_program({.name = "trireme", .find_launcher = find_launcher});
    return run_program(program, {argv + 1, argv + argc});
  }));
}
