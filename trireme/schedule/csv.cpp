#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/schedule/program.h"

namespace trireme::schedule {
namespace {

std::vector<Action> parse_line(std::string_view line, std::size_t number) {
  std::vector<Action> actions;
  std::size_t token_number = 0;
  for (const std::string& token : split(line, ',')) {
    ++token_number;
    try {
      const std::vector<Action> cell = parse_cell(trim(token));
      actions.insert(actions.end(), cell.begin(), cell.end());
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(text("line ", number, ", token ", token_number, ": ", error.what()));
    }
  }
  return actions;
}

bool is_work(const Action& action) { return action.kind != ActionKind::kIdle; }

void count(Program& program) {
  std::int64_t stages = 0, microbatches = 0;
  for (const std::vector<Action>& actions : program.ranks) {
    for (const Action& action : actions) {
      if (!is_work(action)) continue;
      stages = std::max(stages, std::int64_t{action.stage} + 1);
      microbatches = std::max(microbatches, std::int64_t{action.microbatch} + 1);
    }
  }
  check_size("a program that names stages and micro-batches up to its largest", std::ssize(program.ranks),
             stages, microbatches);
  program.num_stages = static_cast<int>(stages);
  program.num_microbatches = static_cast<int>(microbatches);
}

}  // namespace

std::string to_csv(const Program& program) {
  std::string csv;
  for (const std::vector<Action>& actions : program.ranks) {
    std::vector<std::string> tokens;
    for (const Cell cell : cells_of(actions)) tokens.push_back(to_text(cell));
    csv += join(tokens, ",") + "\n";
  }
  return csv;
}

Program parse_csv(std::string_view csv) {
  Program program{.name = "csv", .ranks = {}};
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // of UTF-8: spreadsheets write it first
  if (csv.starts_with(kByteOrderMark)) csv.remove_prefix(kByteOrderMark.size());
  while (!csv.empty() && (csv.back() == '\n' || csv.back() == '\r')) csv.remove_suffix(1);
  const std::vector<std::string> lines = split(csv, '\n');
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].starts_with('#')) continue;
    std::vector<Action> actions = parse_line(lines[i], i + 1);
    require(std::any_of(actions.begin(), actions.end(), is_work), "line ", i + 1,
            ": a rank has at least one action, found none");
    program.ranks.push_back(std::move(actions));
  }
  require(!program.ranks.empty(), "line 1: a program has at least one line, found none");
  count(program);
  return program;
}

}  // namespace trireme::schedule
