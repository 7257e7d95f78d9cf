#include "trireme/topology/rdma_adapters.h"

#include <algorithm>
#include <fstream>

#include "trireme/base/text.h"

namespace trireme::topology {
namespace {

namespace fs = std::filesystem;

/// "4: ACTIVE".
bool is_active(const fs::path& port) {
  std::ifstream file(port / "state");
  std::string line;
  return std::getline(file, line) && line.ends_with("ACTIVE") && !line.ends_with("INACTIVE");
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code missing;
  std::vector<fs::path> entries;
  for (fs::directory_iterator at(folder, missing), end; !missing && at != end; at.increment(missing))
    entries.push_back(at->path());
  return entries;
}

}  // namespace

std::vector<std::string> active_rdma_ports(const fs::path& system) {
  std::vector<std::string> active;
  for (const fs::path& adapter : entries_of(system)) {
    for (const fs::path& port : entries_of(adapter / "ports")) {
      if (is_active(port)) active.push_back(text(adapter.filename().string(), ":", port.filename().string()));
    }
  }
  std::ranges::sort(active);
  return active;
}

}  // namespace trireme::topology
