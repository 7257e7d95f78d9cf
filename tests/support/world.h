#pragma once
// Ranks as real processes of one host, started by hand with the variables of a launcher: nobody stops the
// others when one of them ends.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/ports.h"

namespace trireme::test {

struct World {
  int size = 2;
  std::vector<std::string> command;  ///< of each rank
  int port = free_port();
  /// By rank, on top of the launcher's variables.
  std::map<int, std::map<std::string, std::string>> extra{};
};

std::unique_ptr<ChildProcess> start(const World& world, int rank);
std::vector<std::unique_ptr<ChildProcess>> start_all(const World& world);

}  // namespace trireme::test
