#include "cli/setting_words.h"

#include <sstream>

#include "trireme/base/text.h"
#include "trireme/schedule/schedule_table.h"

namespace trireme::cli {
namespace {

/// "run.name= run.folder=": each name with the suffix `behind`.
std::string keys(const std::vector<Setting>& settings, const std::string& behind) {
  std::vector<std::string> names;
  for (const auto& setting : settings) names.push_back(setting.name + behind);
  return join(names, " ");
}

/// A line for each key with known values: `before` KEY `between` VALUES `behind`.
std::string rows(const std::vector<Setting>& settings, const std::string& before, const std::string& between,
                 const std::string& behind) {
  std::string result;
  for (const auto& setting : settings) {
    const auto values = values_of(setting);
    if (!values.empty()) result += text(before, setting.name, between, join(values, " "), behind, "\n");
  }
  return result;
}

}  // namespace

std::vector<std::string> values_of(const Setting& setting) {
  if (setting.type == "true or false") return {"true", "false"};
  if (setting.name == "parallel.schedule") return schedule::schedule_names();  // or a file
  if (setting.type != "text") return {};
  std::vector<std::string> names;
  std::istringstream words(setting.allowed);
  for (std::string name; std::getline(words >> std::ws, name, ',');) {
    if (name.find(' ') != std::string::npos) return {};  // not a list of names: "not empty, without '/'"
    names.push_back(name);
  }
  return names;
}

std::string settings_for_bash(const std::vector<Setting>& settings) {
  // If = ends a word (the default of COMP_WORDBREAKS), only the value is replaced.
  return text(
      "_trireme_settings() {\n"
      "  local values= before=\n"
      "  if [[ $1 != *=* ]]; then\n"
      "    COMPREPLY=($(compgen -W \"",
      keys(settings, "="),
      "\" -- \"$1\"))\n"
      "    if [ ${#COMPREPLY[@]} -gt 0 ]; then compopt -o nospace 2>/dev/null; fi\n"
      "    return\n"
      "  fi\n"
      "  case ${1%%=*} in\n",
      rows(settings, "    ", ") values=\"", "\" ;;"),
      "  esac\n"
      "  if [[ ${COMP_WORDS[COMP_CWORD]} == ?*=* ]]; then before=${1%%=*}=; fi\n"
      "  COMPREPLY=($(compgen -P \"$before\" -W \"$values\" -- \"${1#*=}\"))\n"
      "}\n");
}

std::string settings_for_zsh(const std::vector<Setting>& settings) {
  return text(
      "_trireme_settings() {\n"
      "  if ! compset -P 1 '*='; then\n"
      "    compadd -S = -- ",
      keys(settings, ""),
      "\n"
      "    return\n"
      "  fi\n"
      "  case ${IPREFIX%=} in\n",
      rows(settings, "    ", ") compadd -- ", " ;;"),
      "  esac\n"
      "}\n");
}

std::string settings_for_fish(const std::vector<Setting>& settings) {
  return text(
      "function __trireme_settings\n"
      "  set -l parts (string split -m 1 = -- (commandline -ct))\n"
      "  set -l values\n"
      "  if test (count $parts) -lt 2\n"
      "    printf '%s\\n' ",
      keys(settings, "="),
      "\n"
      "    return\n"
      "  end\n"
      "  switch $parts[1]\n",
      rows(settings, "    case ", "\n      set values ", ""),
      "  end\n"
      "  for value in $values\n"
      "    echo $parts[1]=$value\n"
      "  end\n"
      "end\n");
}

}  // namespace trireme::cli
