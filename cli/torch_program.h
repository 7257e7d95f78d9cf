#pragma once
// Programs whose commands have tensors: `trireme-torch`, and custom programs.

#include <functional>
#include <memory>
#include <string>

#include "cli/command.h"

namespace trireme::train {
class Registry;
}

namespace trireme::cli {

/// What tells one such program from another.
struct Home {
  std::string name;                                           ///< as it is called
  std::shared_ptr<const train::Registry> registry = nullptr;  ///< its own types; null: none
  std::function<std::string()> find_launcher = nullptr;       ///< of `launch -n N`; null: itself
};

Program torch_program(const Home& home);

}  // namespace trireme::cli
