#include "trireme/comm/internal/backend_table.h"

#include "trireme/base/error.h"
#include "trireme/comm/context.h"

namespace trireme::comm {
namespace {

std::string always() { return {}; }

}  // namespace

const std::vector<BackendRow>& backend_table() {
  static const std::vector<BackendRow> table = {
      {.name = "gloo",
       .summary = "TCP between hosts, any CPU",
       .checks_operations = false,
       .unavailable_because = always,
       .make = make_gloo_backend},
  };
  return table;
}

const BackendRow& find_backend(const std::string& name) {
  std::vector<std::string> known;
  for (const auto& row : backend_table()) {
    if (row.name == name) {
      const std::string reason = row.unavailable_because();
      require(reason.empty(), "backend '", name, "' cannot be used here: ", reason);
      return row;
    }
    known.push_back(row.name);
  }
  throw InvalidArgument(text("there is no backend '", name, "'", suggest(name, known)));
}

std::vector<BackendInfo> backend_infos() {
  std::vector<BackendInfo> infos;
  for (const auto& row : backend_table()) {
    infos.push_back({row.name, row.summary, row.unavailable_because()});
  }
  return infos;
}

}  // namespace trireme::comm
