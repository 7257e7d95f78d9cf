#include "cli/backends.h"

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/comm/context.h"
#include "trireme/topology/networks.h"

namespace trireme::cli {
namespace {

/// A backend, or a network for collectives between hosts.
struct Row {
  std::string kind, name, summary, unavailable_because;
};

std::vector<Row> rows_of_all() {
  std::vector<Row> rows;
  for (const auto& each : comm::backend_infos())
    rows.push_back({"backend", each.name, each.summary, each.unavailable_because});
  for (const auto& each : topology::network_infos())
    rows.push_back({"network", each.name, each.summary, each.unavailable_because});
  return rows;
}

void print_json(const std::vector<Row>& rows) {
  auto json = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    json.push_back({{"kind", row.kind},
                    {"name", row.name},
                    {"summary", row.summary},
                    {"unavailable_because", row.unavailable_because}});
  }
  std::cout << json.dump(2) << "\n";
}

void print_table(const std::vector<Row>& rows) {
  std::string kind = rows.front().kind;
  for (const Row& row : rows) {
    if (row.kind != kind) std::cout << "\nBetween hosts (comm.network):\n";
    kind = row.kind;
    const bool works = row.unavailable_because.empty();
    std::cout << std::left << std::setw(14) << row.name << std::setw(5) << (works ? "ok" : "no")
              << row.summary;
    if (!works) std::cout << "\n" << std::string(19, ' ') << row.unavailable_because;
    std::cout << "\n";
  }
}

}  // namespace

int list_backends(const BackendsArguments& arguments) {
  const std::vector<Row> rows = rows_of_all();
  arguments.json ? print_json(rows) : print_table(rows);
  const bool any = std::ranges::any_of(
      rows, [](const Row& row) { return row.kind == "backend" && row.unavailable_because.empty(); });
  return any ? kExitOk : kExitComm;
}

}  // namespace trireme::cli
