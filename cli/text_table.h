#pragma once
// A table for a terminal: columns as wide as their widest cell, two spaces between them, no lines. A value.

#include <iosfwd>
#include <string>
#include <vector>

namespace trireme::cli {

enum class Align { kLeft, kRight };

struct TextTable {
  std::vector<Align> columns;
  std::vector<std::vector<std::string>> rows;  ///< of one cell per column, or fewer
};

/// Spaces at the end of a line are left out.
void print(std::ostream& out, const TextTable& table);

}  // namespace trireme::cli
