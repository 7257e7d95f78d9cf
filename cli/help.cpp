// The help texts, in one form for all commands: summary, usage, arguments and options, examples.

#include <algorithm>
#include <sstream>

#include "cli/frame.h"
#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

constexpr std::size_t kColumn = 24;

std::string row(const std::string& left, const std::string& right) {
  std::string line = "  " + left;
  line +=
      line.size() + 2 <= kColumn ? std::string(kColumn - line.size(), ' ') : "\n" + std::string(kColumn, ' ');
  return line + right + "\n";
}

/// "-n, --nproc N". Options without a short name are indented, so that long names are aligned.
std::string left_of(const CLI::Option& option) {
  if (option.get_positional()) return option.get_type_name();
  std::string names;
  for (const auto& name : option.get_snames()) names += "-" + name;
  for (const auto& name : option.get_lnames()) names += (names.empty() ? "    --" : ", --") + name;
  const bool takes_value = option.get_items_expected_max() > 0;
  const auto type = option.get_type_name();  // "N:POSITIVE" if a check has added its name
  return takes_value ? names + " " + type.substr(0, type.find(':')) : names;
}

}  // namespace

std::string as_spoken_by(const std::string& program, std::string words) {
  constexpr std::string_view kOurs = "trireme";
  for (std::size_t at = words.find(kOurs); at != std::string::npos;
       at = words.find(kOurs, at + program.size()))
    words.replace(at, kOurs.size(), program);
  return words;
}

std::string help_of_program(const Program& program, const std::vector<Command>& table) {
  std::string help = text(program.about, "\n\nUsage: ", program.name, " COMMAND [OPTIONS]\n\nCommands:\n");
  for (const auto& command : table) help += row(command.name, command.summary);
  help += "\nOptions:\n" + row("-h, --help", "Print this help") + row("    --version", "Print the version");
  return help + "\nExamples:\n" + program.examples;
}

std::string help_of_command(const Command& command, const CLI::App& app) {
  std::ostringstream help;
  const std::string program = app.get_parent()->get_name();
  help << command.summary << "\n\nUsage: " << program << " " << command.name << " " << command.usage
       << "\n\n";
  const auto is_positional = [](const CLI::Option* option) { return option->get_positional(); };
  auto options = app.get_options();
  std::stable_partition(options.begin(), options.end(), is_positional);
  if (std::any_of(options.begin(), options.end(), is_positional)) help << "Arguments:\n";
  bool in_options = false;
  for (const auto* option : options) {
    if (!option->get_positional() && !in_options) {
      help << (option == options.front() ? "" : "\n") << "Options:\n";
      in_options = true;
    }
    help << row(left_of(*option), option->get_description());
  }
  help << "\nExamples:\n" << as_spoken_by(program, command.examples);
  return help.str();
}

}  // namespace trireme::cli
