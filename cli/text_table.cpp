#include "cli/text_table.h"

#include <algorithm>
#include <ostream>

#include "trireme/base/printable.h"

namespace trireme::cli {
namespace {

/// Characters of a text in UTF-8.
std::size_t width_of(const std::string& cell) {
  return static_cast<std::size_t>(
      std::count_if(cell.begin(), cell.end(), [](unsigned char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

void print(std::ostream& out, const TextTable& table) {
  std::vector<std::size_t> widths(table.columns.size());
  std::vector<std::vector<std::string>> rows = table.rows;
  for (auto& row : rows) {
    for (std::string& cell : row) cell = printable(cell, kWhole);  // a cell may come from an untrusted file
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - width_of(row[i]), ' ');
      line += i == 0 ? "" : "  ";
      line += table.columns[i] == Align::kRight ? space + row[i] : row[i] + space;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << "\n";
  }
}

}  // namespace trireme::cli
