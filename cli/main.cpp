// `trireme`: commands without tensors, and the start of those with tensors.

#include "cli/frame.h"
#include "cli/light_commands.h"

int main(int argc, char** argv) {
  using namespace trireme::cli;
  const Program program = light_program();
  return end_well(program.name, "a bug of trireme", [&] {
    return run_program(program, {argv + 1, argv + argc});
  });
}
