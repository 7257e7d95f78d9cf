#pragma once
// What every program does around its commands: global options, help, unknown names, errors.

#include <functional>
#include <string>
#include <vector>

#include "cli/command.h"

namespace trireme::cli {

/// Finds and runs the command. Throws InvalidArgument for what cannot be understood, and what the command
/// throws.
int run_program(const Program& program, const Arguments& arguments);

/// Runs `body`, which returns an exit code; every error becomes one line, after the program's name, and an
/// exit code. `bugs`: whose an error of no known kind is, "a bug of trireme".
int end_well(const std::string& name, const std::string& bugs, const std::function<int()>& body);

/// Declares all commands on `app`; the result runs them, in the order of `table`.
std::vector<std::function<int()>> declare_all(CLI::App& app, const std::vector<Command>& table);

/// What `trireme --help` prints.
std::string help_of_program(const Program& program, const std::vector<Command>& table);

/// What `trireme COMMAND --help` prints; `app` holds the declared options, and its parent the program's name.
std::string help_of_command(const Command& command, const CLI::App& app);

/// Words about trireme, for a program of another name.
std::string as_spoken_by(const std::string& program, std::string words);

/// Throws InvalidArgument for a word that the command does not know, with the nearest option.
[[noreturn]] void reject_word(const CLI::App& command, const std::string& word);

}  // namespace trireme::cli
