#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/doctor/finding.h"
#include "trireme/base/error.h"

namespace trireme::cli {
namespace {

struct Section {
  std::string title;
  Findings findings;
};

std::vector<Section> examine() {
  return {{"This machine", check_host()}, {"Memory between ranks", check_shared_memory()},
          {"Network", check_network()},   {"Devices", check_devices()},
          {"Programs", check_versions()}, {"Moving tensors between ranks", check_backends()}};
}

const char* word_of(FindingState state) {
  switch (state) {
    case FindingState::kOk:
      return "ok";
    case FindingState::kAbsent:
      return "absent";
    case FindingState::kSlow:
      return "slow";
    default:
      return "fails";
  }
}

const char* colour_of(FindingState state) {
  switch (state) {
    case FindingState::kOk:
      return "\x1b[32m";
    case FindingState::kAbsent:
      return "\x1b[2m";
    case FindingState::kSlow:
      return "\x1b[33m";
    default:
      return "\x1b[31m";
  }
}

bool wants_colour() {
  const char* refused = std::getenv("NO_COLOR");
  return ::isatty(STDOUT_FILENO) == 1 && (refused == nullptr || *refused == '\0');
}

void print(const std::vector<Section>& sections) {
  const bool colour = wants_colour();
  for (const auto& section : sections) {
    std::cout << section.title << "\n";
    for (const auto& finding : section.findings) {
      std::cout << "  " << (colour ? colour_of(finding.state) : "") << std::left << std::setw(8)
                << word_of(finding.state) << (colour ? "\x1b[0m" : "") << std::setw(22) << finding.subject
                << finding.found << "\n";
      if (!finding.advice.empty()) std::cout << std::string(32, ' ') << "-> " << finding.advice << "\n";
    }
  }
}

void print_json(const std::vector<Section>& sections) {
  auto rows = nlohmann::ordered_json::array();
  for (const auto& section : sections) {
    for (const auto& finding : section.findings) {
      rows.push_back({{"section", section.title},
                      {"subject", finding.subject},
                      {"state", word_of(finding.state)},
                      {"found", finding.found},
                      {"advice", finding.advice}});
    }
  }
  std::cout << rows.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

int run_doctor(bool json) {
  const auto sections = examine();
  json ? print_json(sections) : print(sections);
  const auto fails = [](const Finding& finding) { return finding.state == FindingState::kFails; };
  const bool any = std::any_of(sections.begin(), sections.end(), [&](const Section& section) {
    return std::any_of(section.findings.begin(), section.findings.end(), fails);
  });
  const auto& backends = sections.back().findings;
  const bool backend_works = std::any_of(backends.begin(), backends.end(), [](const Finding& finding) {
    return finding.subject.starts_with("backend ") && finding.state == FindingState::kOk;
  });
  if (!json) {
    std::cout << "\n"
              << (!backend_works ? "Training cannot work here: see the lines that fail."
                  : any          ? "Training can work here, but see the lines that fail."
                                 : "Training can work here.")
              << "\n";
  }
  return backend_works ? kExitOk : kExitComm;
}

}  // namespace

Command doctor_command() {
  return {.name = "doctor",
          .summary = "Check this machine for anything slow or missing, with solutions",
          .usage = "[OPTIONS]",
          .examples = "  trireme doctor\n  trireme doctor --json\n",
          .declare = [](CLI::App& app) -> std::function<int()> {
            auto json = std::make_shared<bool>(false);
            app.add_flag("--json", *json, "As JSON");
            return [json] { return run_doctor(*json); };
          }};
}

}  // namespace trireme::cli
