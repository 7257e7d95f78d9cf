#include "trireme/app/run_app.h"

#include <filesystem>

#include "cli/frame.h"
#include "cli/torch_program.h"
#include "trireme/base/text.h"

namespace trireme {

int run_app(int argc, char** argv, train::OwnTypes own) {
  const std::string name = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "app";
  return cli::end_well(name, text("a bug of ", name, " or of trireme"), [&] {
    const auto registry = std::make_shared<const train::Registry>(std::move(own));
    const cli::Program program = cli::torch_program({.name = name, .registry = registry});
    return cli::run_program(program, {argv + 1, argv + argc});
  });
}

}  // namespace trireme
