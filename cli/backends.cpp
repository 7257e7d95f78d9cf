#include "cli/backends.h"

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/comm/context.h"

namespace trireme::cli {
namespace {

void print_json(const std::vector<comm::BackendInfo>& backends) {
  auto rows = nlohmann::ordered_json::array();
  for (const auto& backend : backends) {
    rows.push_back({{"name", backend.name},
                    {"summary", backend.summary},
                    {"unavailable_because", backend.unavailable_because}});
  }
  std::cout << rows.dump(2) << "\n";
}

void print_table(const std::vector<comm::BackendInfo>& backends) {
  for (const auto& backend : backends) {
    const bool works = backend.unavailable_because.empty();
    std::cout << std::left << std::setw(14) << backend.name << std::setw(5) << (works ? "ok" : "no")
              << backend.summary;
    if (!works) std::cout << "\n" << std::string(19, ' ') << backend.unavailable_because;
    std::cout << "\n";
  }
}

}  // namespace

int list_backends(const BackendsArguments& arguments) {
  const auto backends = comm::backend_infos();
  arguments.json ? print_json(backends) : print_table(backends);
  const bool any = std::any_of(backends.begin(), backends.end(),
                               [](const comm::BackendInfo& b) { return b.unavailable_because.empty(); });
  return any ? kExitOk : kExitComm;
}

}  // namespace trireme::cli
