#include <iostream>
#include <memory>
#include <sstream>

#include "cli/command.h"
#include "cli/frame.h"
#include "trireme/base/error.h"
#include "trireme/plan/plan.h"
#include "trireme/schedule/schedule_table.h"

namespace trireme::cli {
namespace {

struct OptionWord {
  std::string name;  ///< "--nproc"
  std::string meaning;
  bool takes_value = false;
  std::string values = {};  ///< those of a known table: "naive gpipe"

  bool is_setting() const { return name == "--set"; }
};

struct CommandWords {
  std::string name;
  std::string meaning;
  std::vector<OptionWord> options;
};

/// For options that take a name from a table: all names.
std::string values_of(const std::string& option) {
  if (option == "schedule") return join(schedule::schedule_names(), " ");
  if (option == "method") return join(plan::partitioner_names(), " ");
  if (option == "format") return "table csv json svg";
  if (option == "view") return "device time microbatches";
  if (option == "transport") return "buffered rendezvous";
  return "";
}

std::vector<CommandWords> words_of(const std::vector<Command>& table) {
  CLI::App app("", "trireme");
  declare_all(app, table);
  std::vector<CommandWords> result;
  for (const auto& command : table) {
    CommandWords words{command.name, command.summary, {}};
    for (const auto* option : app.get_subcommand(command.name)->get_options()) {
      const bool takes_value = option->get_items_expected_max() > 0;
      for (const auto& name : option->get_snames())
        words.options.push_back({"-" + name, option->get_description(), takes_value});
      for (const auto& name : option->get_lnames())
        words.options.push_back({"--" + name, option->get_description(), takes_value, values_of(name)});
    }
    result.push_back(std::move(words));
  }
  return result;
}

/// Words that may follow a command besides its options; empty: a file.
std::string arguments_of(const std::string& command) {
  if (command == "bench") return "allreduce pipeline-resnet50";
  if (command == "completion") return "bash zsh fish";
  if (command == "runs") return "compare";
  if (command == "schedule") return join(schedule::schedule_names(), " ");
  if (command == "data") return "pack inspect verify";
  if (command == "checkpoint") return "inspect verify export import";
  return "";
}

std::string names(const std::vector<OptionWord>& options) {
  std::string result;
  for (const auto& option : options) result += (result.empty() ? "" : " ") + option.name;
  return result;
}

/// Cases of command and previous word. A value without a table is a file, or is not completed.
std::string bash_values(const CommandWords& command) {
  std::ostringstream out;
  std::vector<std::string> others;
  for (const auto& option : command.options) {
    const std::string place = text('"', command.name, " ", option.name, '"');
    if (!option.takes_value) continue;
    if (option.values.empty()) {
      others.push_back(place);
      continue;
    }
    out << "    " << place << ") COMPREPLY=($(compgen -W \"" << option.values
        << "\" -- \"$word\")); return ;;\n";
  }
  if (!others.empty()) out << "    " << join(others, "|") << ") return ;;\n";
  return out.str();
}

std::string for_bash(const std::vector<CommandWords>& commands, const std::vector<Setting>& settings) {
  std::ostringstream out;
  std::string all;
  for (const auto& command : commands) all += command.name + " ";
  // The argument of --set is up to three of COMP_WORDS: KEY, = and VALUE.
  out << "# Completion of trireme for bash: source <(trireme completion bash)\n"
      << settings_for_bash(settings) << "_trireme() {\n"
      << "  local word=${COMP_WORDS[COMP_CWORD]} options=\n"
      << "  COMPREPLY=()\n"
      << "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      << "    COMPREPLY=($(compgen -W \"" << all << "--help --version\" -- \"$word\"))\n"
      << "    return\n"
      << "  fi\n"
      << "  local last=${COMP_WORDS[COMP_CWORD-1]} key=${COMP_WORDS[COMP_CWORD-2]}\n"
      << "  if [ \"$last\" = --set ]; then _trireme_settings \"$word\"; return; fi\n"
      << "  if [ \"$key $word\" = '--set =' ]; then _trireme_settings \"$last=\"; return; fi\n"
      << "  if [ \"$COMP_CWORD\" -gt 3 ] && [ \"${COMP_WORDS[COMP_CWORD-3]} $last\" = '--set =' ]; then\n"
      << "    _trireme_settings \"$key=$word\"\n"
      << "    return\n"
      << "  fi\n"
      << "  case \"${COMP_WORDS[1]} $last\" in\n";
  for (const auto& command : commands) out << bash_values(command);
  out << "  esac\n"
      << "  case ${COMP_WORDS[1]} in\n";
  for (const auto& command : commands) {
    const std::string arguments = arguments_of(command.name);
    out << "    " << command.name << ") options=\"" << names(command.options)
        << (arguments.empty() ? "" : " " + arguments) << "\" ;;\n";
  }
  out << "  esac\n"
      << "  COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
      << "}\n"
      << "complete -o default -F _trireme trireme\n";
  return out.str();
}

/// Text for single quotes of a shell. zsh interprets colons and brackets.
std::string quoted(const std::string& text, const std::string& special) {
  std::string result;
  for (const char c : text) {
    if (c == '\'') {
      result += "'\\''";
    } else {
      if (special.find(c) != std::string::npos) result += '\\';
      result += c;
    }
  }
  return result;
}

std::string for_zsh(const std::vector<CommandWords>& commands, const std::vector<Setting>& settings) {
  std::ostringstream out;
  out << "#compdef trireme\n# Completion of trireme for zsh: source <(trireme completion zsh)\n"
      << settings_for_zsh(settings) << "_trireme() {\n"
      << "  local -a commands\n"
      << "  commands=(\n";
  for (const auto& command : commands) {
    out << "    '" << command.name << ":" << quoted(command.meaning, ":\\") << "'\n";
  }
  out << "  )\n"
      << "  if (( CURRENT == 2 )); then\n    _describe command commands\n    return\n  fi\n"
      << "  local command=$words[2]\n  shift words\n  (( CURRENT-- ))\n"
      << "  case $command in\n";
  for (const auto& command : commands) {
    out << "    " << command.name << ") _arguments";
    for (const auto& option : command.options) {
      out << " \\\n      '" << (option.is_setting() ? "*" : "") << option.name << "["
          << quoted(option.meaning, "[]\\") << "]"
          << (!option.takes_value     ? ""
              : option.is_setting()   ? ":setting:_trireme_settings"
              : option.values.empty() ? ":value:_files"
                                      : ":value:(" + option.values + ")")
          << "'";
    }
    const std::string arguments = arguments_of(command.name);
    if (!arguments.empty()) out << " \\\n      '1:argument:(" << arguments << ")'";
    out << " \\\n      '*:argument:_files' ;;\n";
  }
  // In a file of zsh's function path this is the body of _trireme, called for the first completion.
  out << "  esac\n}\nif [[ $funcstack[1] == _trireme ]]; then _trireme \"$@\"; else compdef _trireme "
         "trireme; fi\n";
  return out.str();
}

std::string for_fish(const std::vector<CommandWords>& commands, const std::vector<Setting>& settings) {
  std::ostringstream out;
  out << "# Completion of trireme for fish: trireme completion fish | source\n"
      << settings_for_fish(settings);
  for (const auto& command : commands) {
    out << "complete -c trireme -n __fish_use_subcommand -f -a " << command.name << " -d '"
        << quoted(command.meaning, "\\") << "'\n";
    const std::string seen = "complete -c trireme -n '__fish_seen_subcommand_from " + command.name + "'";
    for (const auto& option : command.options) {
      const bool is_long = option.name.starts_with("--");
      out << seen << (is_long ? " -l " : " -s ") << option.name.substr(is_long ? 2 : 1)
          << (!option.takes_value     ? ""
              : option.is_setting()   ? " -x -a '(__trireme_settings)'"
              : option.values.empty() ? " -r"
                                      : " -x -a '" + option.values + "'")
          << " -d '" << quoted(option.meaning, "\\") << "'\n";
    }
    const std::string arguments = arguments_of(command.name);
    if (!arguments.empty()) out << seen << " -a '" << arguments << "'\n";
  }
  return out.str();
}

std::string completion_for(const std::string& shell, const std::vector<CommandWords>& words,
                           const std::vector<Setting>& settings) {
  if (shell == "bash") return for_bash(words, settings);
  if (shell == "zsh") return for_zsh(words, settings);
  if (shell == "fish") return for_fish(words, settings);
  throw InvalidArgument(text("there is no completion for '", shell, "' (known: bash, zsh, fish)"));
}

int print_completion(const std::string& shell, const Program& program, const std::vector<Setting>& settings) {
  const std::string script = completion_for(shell, words_of(program.commands(program, {})), settings);
  std::cout << as_spoken_by(program.name, script);
  return kExitOk;
}

}  // namespace

Command completion_command(const Program& program, std::function<std::vector<Setting>()> settings) {
  return {.name = "completion",
          .summary = "Print the completion script for a shell",
          .usage = "SHELL",
          .examples =
              "  source <(trireme completion bash)\n"
              "  trireme completion fish | source\n",
          .declare = [&program, settings](CLI::App& app) -> std::function<int()> {
            auto shell = std::make_shared<std::string>();
            app.add_option("shell", *shell, "bash, zsh or fish")->type_name("SHELL")->required();
            return [shell, settings, &program] { return print_completion(*shell, program, settings()); };
          }};
}

}  // namespace trireme::cli
