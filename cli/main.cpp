// The frame of both programs: finds the command, parses its options, runs it, and turns every error into one
// line and an exit code.

#include <cstdio>
#include <exception>
#include <iostream>
#include <new>

#include "cli/command.h"
#include "cli/frame.h"
#include "trireme/base/error.h"

int main(int argc, char** argv) {
  using namespace trireme;
  try {
    return cli::run_program({argv + 1, argv + argc});
  } catch (const Error& error) {
    std::cerr << "trireme: error: " << error.what() << "\n";
    return error.exit_code();
  } catch (const std::bad_alloc&) {
    std::cerr << "trireme: error: out of memory\n";
    return kExitInternal;
  } catch (const std::exception& error) {
    std::cerr << "trireme: error: " << cli::without_backtrace(error.what())
              << "\ntrireme: this is a bug of trireme; please report it with the command and this message\n";
    return kExitInternal;
  }
}
