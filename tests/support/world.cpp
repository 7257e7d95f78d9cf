#include "tests/support/world.h"

namespace trireme::test {

std::unique_ptr<ChildProcess> start(const World& world, int rank) {
  std::map<std::string, std::string> variables{
      {"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(world.size)},
      {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(world.size)},
      {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(world.port)}};
  const auto extra = world.extra.find(rank);
  if (extra != world.extra.end()) {
    for (const auto& [name, value] : extra->second) variables[name] = value;
  }
  return std::make_unique<ChildProcess>(world.command, variables);
}

std::vector<std::unique_ptr<ChildProcess>> start_all(const World& world) {
  std::vector<std::unique_ptr<ChildProcess>> ranks;
  for (int rank = 0; rank < world.size; ++rank) ranks.push_back(start(world, rank));
  return ranks;
}

}  // namespace trireme::test
