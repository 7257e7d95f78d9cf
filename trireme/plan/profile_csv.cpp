#include <charconv>

#include "trireme/base/bounded_file.h"
#include "trireme/base/error.h"
#include "trireme/plan/internal/parse_number.h"
#include "trireme/plan/internal/state_check.h"
#include "trireme/plan/profile.h"

namespace trireme::plan {
namespace {

constexpr std::string_view kHeader =
    "state,antichain,cum_compute_s,cum_activation_bytes,cum_parameter_bytes,output_activation_bytes,"
    "predecessor_states";
constexpr std::size_t kNumColumns = 7;
constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;
/// The line of state 0; lines count from 1.
constexpr std::size_t kFirstLine = 2;

/// A number, or a DataError with line and column.
template <class Number>
Number read_cell(std::string_view cell, std::size_t line, const char* column, const char* expected) {
  const auto number = parse_number<Number>(cell);
  if (!number) {
    throw DataError(text("line ", line, ", column ", column, ": found '", cell, "', expected ", expected));
  }
  return *number;
}

std::vector<std::size_t> read_predecessors(const std::string& cell, std::size_t line) {
  std::vector<std::size_t> predecessors;
  if (cell.empty()) return predecessors;
  for (const std::string& word : split(cell, ' ')) {
    predecessors.push_back(read_cell<std::size_t>(word, line, "predecessor_states",
                                                  "numbers of states, separated by one space"));
  }
  return predecessors;
}

State read_state(const std::string& row, std::size_t line) {
  const std::vector<std::string> cells = split(row, ',');
  if (cells.size() != kNumColumns) {
    throw DataError(
        text("line ", line, ": found ", cells.size(), " column(s), expected ", kNumColumns, ": ", kHeader));
  }
  const std::size_t number = line - kFirstLine;
  if (read_cell<std::size_t>(cells[0], line, "state", "the number of a state") != number) {
    throw DataError(text("line ", line, ", column state: found ", cells[0], ", expected ", number,
                         ", as states are numbered from 0 without a gap"));
  }
  const auto figure = [&](std::size_t cell, const char* column) {
    return read_cell<double>(cells[cell], line, column, "a number");
  };
  return {.name = cells[1],
          .compute_s = figure(2, "cum_compute_s"),
          .activation_bytes = figure(3, "cum_activation_bytes"),
          .parameter_bytes = figure(4, "cum_parameter_bytes"),
          .output_bytes = figure(5, "output_activation_bytes"),
          .predecessors = read_predecessors(cells[6], line)};
}

/// Lines without their ends; CRLF is accepted.
std::vector<std::string> lines_of(std::string_view csv) {
  if (csv.ends_with('\n')) csv.remove_suffix(1);
  std::vector<std::string> lines = split(csv, '\n');
  for (std::string& line : lines) {
    if (line.ends_with('\r')) line.pop_back();
  }
  return lines;
}

}  // namespace

std::string to_csv(const Profile& profile) {
  const auto figure = [](double number) {
    char digits[40];
    const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
    return std::string(digits, end);
  };
  std::string csv(kHeader);
  csv += '\n';
  for (std::size_t number = 0; number < profile.num_states(); ++number) {
    const State& state = profile.states()[number];
    std::vector<std::string> before;
    for (const std::size_t predecessor : state.predecessors) before.push_back(std::to_string(predecessor));
    const std::vector<std::string> cells = {std::to_string(number),
                                            state.name,
                                            figure(state.compute_s),
                                            figure(state.activation_bytes),
                                            figure(state.parameter_bytes),
                                            figure(state.output_bytes),
                                            join(before, " ")};
    csv += join(cells, ",") + '\n';
  }
  return csv;
}

Profile parse_profile(std::string_view csv) {
  const std::vector<std::string> lines = lines_of(csv);
  if (lines.front() != kHeader)
    throw DataError(text("line 1: found '", lines.front().substr(0, 80), "', expected the header ", kHeader));
  if (lines.size() < kFirstLine)
    throw DataError(text("line ", kFirstLine, ": found the end, expected the first state of the profile"));
  std::vector<State> states;
  for (std::size_t i = 1; i < lines.size(); ++i) states.push_back(read_state(lines[i], i + 1));
  if (const auto problem = find_problem(states)) {
    throw DataError(text("line ", problem->state + kFirstLine, ", column ", problem->column, ": found ",
                         problem->found, ", expected ", problem->expected));
  }
  return Profile(std::move(states));
}

Profile read_profile(const std::filesystem::path& path) {
  const std::string csv = read_bounded_stream(path, kMostBytes, "profile");
  try {
    return parse_profile(csv);
  } catch (const DataError& error) {
    throw DataError(text(path.string(), ": ", error.what()));
  }
}

}  // namespace trireme::plan
