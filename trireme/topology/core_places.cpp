#include "trireme/topology/core_places.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <tuple>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::topology {
namespace {

/// The number at the start of a file; 0 if there is none.
int number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  int number = 0;
  return file >> number ? number : 0;
}

int node_of(const std::filesystem::path& core) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(core, none)) {
    const std::string name = entry.path().filename();
    const bool is_node = name.starts_with("node") && name.find_first_not_of("0123456789", 4) == name.npos;
    if (is_node && name.size() > 4) return std::stoi(name.substr(4));
  }
  return 0;
}

int last_cache_of(const std::filesystem::path& core) {
  int level = 0, first = 0;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(core / "cache", none)) {
    const int found = number_in(entry.path() / "level");
    if (found <= level) continue;
    level = found;
    first = number_in(entry.path() / "shared_cpu_list");
  }
  return first;
}

auto physical_core(const CorePlace& place) { return std::tuple(place.socket, place.node, place.physical); }

/// Groups of cores that are assigned together.
std::vector<std::vector<int>> units_of(const std::vector<CorePlace>& places, bool whole_cores) {
  std::vector<std::vector<int>> units;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const bool goes_on = whole_cores && i > 0 && physical_core(places[i]) == physical_core(places[i - 1]);
    if (!goes_on) units.emplace_back();
    units.back().push_back(places[i].number);
  }
  return units;
}

}  // namespace

std::vector<CorePlace> core_places(std::span<const int> cores, const std::filesystem::path& system) {
  std::vector<CorePlace> places;
  for (const int core : cores) {
    const std::filesystem::path folder = system / text("cpu", core);
    places.push_back({.number = core,
                      .socket = number_in(folder / "topology" / "physical_package_id"),
                      .node = node_of(folder),
                      .cache = last_cache_of(folder),
                      .physical = number_in(folder / "topology" / "core_id")});
  }
  // Without core ids, each core counts as a physical core.
  const auto is_unknown = [](const CorePlace& place) { return place.physical == 0; };
  if (std::ranges::all_of(places, is_unknown))
    for (CorePlace& place : places) place.physical = place.number;
  return places;
}

std::vector<std::vector<int>> share_out(std::vector<CorePlace> places, int processes) {
  require(processes >= 1 && processes <= std::ssize(places), places.size(), " cores are none for each of ",
          processes, " processes");
  std::ranges::sort(places, {}, [](const CorePlace& place) {
    return std::tuple(place.socket, place.node, place.cache, place.physical, place.number);
  });
  std::vector<std::vector<int>> units = units_of(places, /*whole_cores=*/true);
  if (std::ssize(units) < processes) units = units_of(places, /*whole_cores=*/false);
  std::vector<std::vector<int>> shares(static_cast<std::size_t>(processes));
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const std::size_t begin = i * units.size() / shares.size(), end = (i + 1) * units.size() / shares.size();
    for (std::size_t unit = begin; unit < end; ++unit)
      shares[i].insert(shares[i].end(), units[unit].begin(), units[unit].end());
    std::ranges::sort(shares[i]);
  }
  return shares;
}

std::vector<std::vector<int>> with_nodes(const std::vector<CorePlace>& places,
                                         const std::vector<std::vector<int>>& shares) {
  std::vector<std::vector<int>> wide;
  for (const std::vector<int>& share : shares) {
    std::set<int> nodes;
    for (const CorePlace& place : places)
      if (std::ranges::find(share, place.number) != share.end()) nodes.insert(place.node);
    std::vector<int>& cores = wide.emplace_back();
    for (const CorePlace& place : places)
      if (nodes.contains(place.node)) cores.push_back(place.number);
    std::ranges::sort(cores);
  }
  return wide;
}

std::string describe_cores(std::span<const int> cores) {
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < cores.size();) {
    std::size_t last = i;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    runs.push_back(last == i ? text(cores[i]) : text(cores[i], "-", cores[last]));
    i = last + 1;
  }
  return join(runs, ",");
}

}  // namespace trireme::topology
