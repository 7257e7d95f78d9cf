#include <algorithm>

#include "trireme/base/text.h"
#include "trireme/schedule/draw.h"

namespace trireme::schedule {

std::string to_table(const Program& program) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::size_t> widths;
  for (const std::vector<Action>& actions : program.ranks) {
    std::vector<std::string>& row = rows.emplace_back();
    for (const Cell cell : cells_of(actions)) {
      row.push_back(to_text(cell));
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
  return table;
}

}  // namespace trireme::schedule
