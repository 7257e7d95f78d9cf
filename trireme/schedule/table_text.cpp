#include <algorithm>

#include "trireme/base/text.h"
#include "trireme/schedule/draw.h"
#include "trireme/schedule/weight_versions.h"

namespace trireme::schedule {

namespace {

/// The text of the cell, with the versions of weights that its actions use or make: "0F4:v1".
std::string with_versions(Cell cell, const int* versions) {
  std::string label;
  for (std::size_t i = 0; i < cell.size(); ++i) {
    label += (i == 0 ? "" : ";") + to_text(cell[i]);
    if (versions[i] != kNoVersion) label += text(":v", versions[i]);
  }
  if (cell.size() == 1) return label;
  const std::string joined = to_text(cell);
  return text("(", label, joined.substr(joined.find(')')));
}

constexpr std::string_view kLegend =
    "vN: the weights of the stage after N updates; a forward or backward uses them, a STEP makes them\n";

}  // namespace

std::string to_table(const Program& program) {
  const std::vector<std::vector<int>> versions = versions_by_action(program);
  std::vector<std::vector<std::string>> rows;
  std::vector<std::size_t> widths;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    const std::vector<Action>& actions = program.ranks[rank];
    std::vector<std::string>& row = rows.emplace_back();
    for (const Cell cell : cells_of(actions)) {
      row.push_back(with_versions(cell, versions[rank].data() + (cell.data() - actions.data())));
      if (widths.size() < row.size()) widths.push_back(0);
      widths[row.size() - 1] = std::max(widths[row.size() - 1], row.back().size());
    }
  }
  const std::size_t digits = std::to_string(rows.size() - 1).size();
  std::string table;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    const std::string number = std::to_string(rank);
    std::string line = "rank " + std::string(digits - number.size(), ' ') + number + " ";
    for (std::size_t i = 0; i < rows[rank].size(); ++i) {
      line += " " + rows[rank][i] + std::string(widths[i] - rows[rank][i].size(), ' ');
    }
    table += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return program.update_every > 0 ? table.append(kLegend) : table;
}

}  // namespace trireme::schedule
