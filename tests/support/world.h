#pragma once
// Ranks as real processes of one host, started by hand with the variables of a launcher. When one rank ends,
// no launcher stops the others.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/ports.h"

namespace trireme::test {

struct World {
  int size = 2;
  std::vector<std::string> command;  ///< command of each rank
  int port = free_port();
  /// Variables by rank, in addition to the launcher's variables.
  std::map<int, std::map<std::string, std::string>> extra{};
};

std::unique_ptr<ChildProcess> start(const World& world, int rank);
std::vector<std::unique_ptr<ChildProcess>> start_all(const World& world);

}  // namespace trireme::test
