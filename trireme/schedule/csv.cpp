#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/schedule/program.h"

namespace trireme::schedule {
namespace {

std::vector<Action> parse_line(std::string_view line, std::size_t number) {
  std::vector<Action> actions;
  for (const std::string& token : split(line, ',')) {
    try {
      actions.push_back(parse_action(trim(token)));
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(text("line ", number, ", token ", actions.size() + 1, ": ", error.what()));
    }
  }
  return actions;
}

}  // namespace

std::string to_csv(const Program& program) {
  std::string csv;
  for (const std::vector<Action>& actions : program.ranks) {
    std::vector<std::string> tokens;
    for (const Action& action : actions) tokens.push_back(to_text(action));
    csv += join(tokens, ",") + "\n";
  }
  return csv;
}

Program parse_csv(std::string_view csv) {
  Program program{.name = "csv", .num_stages = 0, .num_microbatches = 0, .ranks = {}};
  while (!csv.empty() && csv.back() == '\n') csv.remove_suffix(1);
  require(!csv.empty(), "line 1: a program has at least one line, found none");
  const std::vector<std::string> lines = split(csv, '\n');
  for (std::size_t i = 0; i < lines.size(); ++i) program.ranks.push_back(parse_line(lines[i], i + 1));
  for (const std::vector<Action>& actions : program.ranks) {
    for (const Action& action : actions) {
      program.num_stages = std::max(program.num_stages, action.stage + 1);
      program.num_microbatches = std::max(program.num_microbatches, action.microbatch + 1);
    }
  }
  return program;
}

}  // namespace trireme::schedule
