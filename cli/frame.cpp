#include "cli/frame.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <iostream>

#include "trireme/base/error.h"
#include "trireme/base/printable.h"
#include "trireme/base/run_main.h"

namespace trireme::cli {
namespace {

std::vector<std::string> names_of(const std::vector<Command>& table) {
  std::vector<std::string> names;
  for (const auto& command : table) names.push_back(command.name);
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* option : app.get_options()) {
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
    for (const auto& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

/// "trireme train"
std::string spoken(const CLI::App& command) {
  return command.get_parent()->get_name() + " " + command.get_name();
}

std::string see_help(const CLI::App& command) { return text("; see: ", spoken(command), " --help"); }

/// "--nproc: 'two' is no number that it takes" for "Could not convert: --nproc = two". All other options take
/// text, so only numbers fail.
std::string in_our_words(const std::string& complaint) {
  constexpr std::string_view kBegin = "Could not convert: ", kIs = " = ";
  const auto is = complaint.find(kIs);
  if (!complaint.starts_with(kBegin) || is == std::string::npos) return complaint;
  return text(complaint.substr(kBegin.size(), is - kBegin.size()), ": '", complaint.substr(is + kIs.size()),
              "' is no number that it takes");
}

/// Rethrows the parser's error with our wording.
[[noreturn]] void refuse(const CLI::App& command, const CLI::ParseError& error) {
  const auto extras = command.remaining();
  const bool unknown = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  // An unknown option also explains why another one is missing.
  if (!extras.empty() && (unknown || extras.front().starts_with("-"))) reject_word(command, extras.front());
  throw InvalidArgument(text(spoken(command), ": ", in_our_words(error.what()), see_help(command)));
}

/// "--timeline --set lr=1" and "--timeline" at the end: the parser would take the next option as the file.
void reject_options_without_values(const CLI::App& command, const Arguments& words) {
  const auto option_of = [&](const std::string& word) {
    return word.starts_with("-") ? command.get_option_no_throw(word) : nullptr;
  };
  for (auto word = words.begin(); word != words.end() && *word != "--"; ++word) {
    const CLI::Option* option = option_of(*word);
    if (option == nullptr || option->get_items_expected_min() == 0) continue;
    const auto next = word + 1;
    const bool is_last = next == words.end() || *next == "--";
    if (!is_last && option_of(*next) == nullptr) continue;
    throw InvalidArgument(text(spoken(command), ": ", *word, " takes ", option->get_type_name(), ", and ",
                               is_last ? "nothing follows it" : "the option '" + *next + "' follows it",
                               see_help(command)));
  }
}

/// Input of the parser: all words before "--", last one first. The other words belong to a command's program.
std::vector<std::string> for_parser(const Arguments& arguments) {
  std::vector<std::string> words(arguments.begin(), std::find(arguments.begin(), arguments.end(), "--"));
  std::reverse(words.begin(), words.end());
  return words;
}

void check_command(const Program& program, const Arguments& arguments, const std::vector<Command>& table) {
  const auto names = names_of(table);
  const std::string help = "; see: " + program.name + " --help";
  require(!arguments.front().starts_with("-"), "there is no option '", arguments.front(),
          "' before the command", help);
  require(std::find(names.begin(), names.end(), arguments.front()) != names.end(), "there is no command '",
          arguments.front(), "'", suggest(arguments.front(), names), help);
}

}  // namespace

std::vector<std::function<int()>> declare_all(CLI::App& app, const std::vector<Command>& table) {
  std::vector<std::function<int()>> runs;
  for (const auto& command : table) {
    auto* sub = app.add_subcommand(command.name, command.summary);
    sub->set_help_flag("-h,--help", "Print this help");
    runs.push_back(command.declare(*sub));
  }
  return runs;
}

int run_program(const Program& program, const Arguments& arguments) {
  const auto table = program.commands(program, arguments);
  CLI::App app("", program.name);
  const auto runs = declare_all(app, table);
  if (arguments.empty() || arguments.front() == "--help" || arguments.front() == "-h" ||
      arguments.front() == "help") {
    std::cout << help_of_program(program, table);
    return arguments.empty() ? kExitUsage : kExitOk;
  }
  if (arguments.front() == "--version") {
    std::cout << program.version << "\n";
    return kExitOk;
  }
  check_command(program, arguments, table);
  const auto index =
      static_cast<std::size_t>(std::find_if(table.begin(), table.end(),
                                            [&](const Command& c) { return c.name == arguments.front(); }) -
                               table.begin());
  auto* command = app.get_subcommand(arguments.front());
  reject_options_without_values(*command, arguments);
  try {
    app.parse(for_parser(arguments));
  } catch (const CLI::CallForHelp&) {
    std::cout << help_of_command(table[index], *command);
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    refuse(*command, error);
  }
  return runs[index]();
}

void reject_word(const CLI::App& command, const std::string& word) {
  const auto names = option_names(command);
  const std::string near = word.starts_with("-") ? nearest(word, names) : "";
  throw InvalidArgument(text(spoken(command), " does not know '", word, "'",
                             near.empty() ? "" : text(" (did you mean '", near, "'?)"), see_help(command)));
}

namespace {

/// Opens standard files that are closed, so that files opened later do not become standard input, output or
/// error.
void keep_standard_files_taken() {
  for (int file = ::open("/dev/null", O_RDWR); file >= 0; file = ::open("/dev/null", O_RDWR)) {
    if (file <= STDERR_FILENO) continue;
    ::close(file);
    return;
  }
}

}  // namespace

int end_well(const std::string& name, const std::string& bugs, const std::function<int()>& body) {
  keep_standard_files_taken();
  try {
    return body();
  } catch (...) {
    const Failure failure = failure_of(std::current_exception());
    std::cerr << name << ": error: " << printable_message(failure.message) << "\n";
    if (!failure.known)
      std::cerr << name << ": this is " << bugs << "; please report it with the command and this message\n";
    return failure.exit_code;
  }
}

}  // namespace trireme::cli
