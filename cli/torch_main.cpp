// `trireme-torch`: the commands with tensors of `trireme`, whose name it bears.

#include "cli/frame.h"
#include "cli/launch/program_path.h"
#include "cli/torch_program.h"
#include "trireme/base/stop_notice.h"

int main(int argc, char** argv) {
  using namespace trireme::cli;
  trireme::end_with_notice("trireme: stopped by a signal\n");
  return end_well("trireme", "a bug of trireme", [&] {
    // A launcher of many ranks stays small.
    const auto find_launcher = [] { return find_own_program("trireme"); };
    const Program program = torch_program({.name = "trireme", .find_launcher = find_launcher});
    return run_program(program, {argv + 1, argv + argc});
  });
}
