#pragma once
// What both programs do around their commands: global options, help, unknown names.

#include <string>
#include <string_view>

#include "cli/command.h"

namespace trireme::cli {

/// Finds and runs the command. Throws InvalidArgument for what cannot be understood, and what the command
/// throws.
int run_program(const Arguments& arguments);

/// Declares all commands on `app`; the result runs them, in the order of `table`.
std::vector<std::function<int()>> declare_all(CLI::App& app, const std::vector<Command>& table);

/// What `trireme --help` prints.
std::string help_of_program(const std::vector<Command>& table);

/// What `trireme COMMAND --help` prints; `app` holds the declared options.
std::string help_of_command(const Command& command, const CLI::App& app);

/// Throws InvalidArgument for a word that the command does not know, with the nearest option.
[[noreturn]] void refuse_word(const CLI::App& command, const std::string& word);

/// The message of an exception of libtorch without its list of stack frames.
std::string without_backtrace(std::string_view message);

}  // namespace trireme::cli
