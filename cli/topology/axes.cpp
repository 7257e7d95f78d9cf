#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>

#include "cli/text_table.h"
#include "cli/topology/report.h"
#include "trireme/base/mesh_axes.h"
#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

using topology::LinkTable;

/// Links between the ranks of one axis: a collective waits for its slowest link.
struct AxisLinks {
  const AxisRow& row;
  std::vector<std::vector<int>> groups;
  std::size_t max_hosts = 0;  ///< of a group
  topology::Link slowest;     ///< the largest alpha and the least bandwidth of any pair of a group
};

AxisLinks links_of(const AxisRow& row, const MeshShape& mesh, const LinkTable& table) {
  AxisLinks found{.row = row,
                  .groups = mesh.groups({row.name}),
                  .slowest = {.alpha_s = 0, .bytes_per_s = std::numeric_limits<double>::max()}};
  for (const std::vector<int>& group : found.groups) {
    std::set<int> hosts;
    for (const int from : group) {
      hosts.insert(table.host_of[static_cast<std::size_t>(from)]);
      for (const int to : group) {
        if (from == to) continue;
        const topology::Link& link = table.link(from, to);
        found.slowest.alpha_s = std::max(found.slowest.alpha_s, link.alpha_s);
        found.slowest.bytes_per_s = std::min(found.slowest.bytes_per_s, link.bytes_per_s);
      }
    }
    found.max_hosts = std::max(found.max_hosts, hosts.size());
  }
  return found;
}

/// Only axes with more than one rank.
std::vector<AxisLinks> links_of_axes(const MeshShape& mesh, const LinkTable& table) {
  std::vector<AxisLinks> found;
  for (const AxisRow& row : mesh_axes()) {
    if (mesh.size(row.name) > 1) found.push_back(links_of(row, mesh, table));
  }
  return found;
}

std::string ranks_text(const std::vector<std::vector<int>>& groups) {
  constexpr std::size_t kMostGroups = 4, kMostRanks = 8;
  std::vector<std::string> words;
  for (std::size_t i = 0; i < std::min(groups.size(), kMostGroups); ++i) {
    std::vector<std::string> ranks;
    for (const int rank : groups[i]) ranks.push_back(std::to_string(rank));
    if (ranks.size() > kMostRanks) {
      ranks[kMostRanks - 2] = "...";
      ranks[kMostRanks - 1] = ranks.back();
      ranks.resize(kMostRanks);
    }
    words.push_back(join(ranks, ","));
  }
  if (groups.size() > kMostGroups) words.emplace_back("...");
  return join(words, " ");
}

}  // namespace

void print_axes(std::ostream& out, const TopologyReport& report, const MeshShape& mesh) {
  out << "\nThe slowest link in a group along each axis of " << mesh.describe() << "\n";
  TextTable shown{
      .columns = {Align::kLeft, Align::kRight, Align::kRight, Align::kRight, Align::kRight, Align::kLeft,
                  Align::kLeft},
      .rows = {{"axis", "ranks", "hosts", "latency", "bandwidth", "groups", "who differs along it"}}};
  for (const AxisLinks& each : links_of_axes(mesh, report.table)) {
    shown.rows.push_back({each.row.name, text(each.groups[0].size()), text(each.max_hosts),
                          seconds_text(each.slowest.alpha_s), rate_text(each.slowest.bytes_per_s),
                          ranks_text(each.groups), each.row.who});
  }
  print(out, shown);
}

std::string axes_to_json(const TopologyReport& report, const MeshShape& mesh) {
  using Json = nlohmann::ordered_json;
  Json axes = Json::array();
  for (const AxisLinks& each : links_of_axes(mesh, report.table)) {
    axes.push_back({{"axis", each.row.name},
                    {"key", each.row.key},
                    {"ranks", each.groups[0].size()},
                    {"most_hosts", each.max_hosts},
                    {"alpha_s", each.slowest.alpha_s},
                    {"bytes_per_s", each.slowest.bytes_per_s},
                    {"groups", each.groups}});
  }
  const Json json = {{"mesh", mesh.describe()}, {"axes", axes}};
  return json.dump(2) + "\n";
}

}  // namespace trireme::cli
