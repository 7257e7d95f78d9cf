#include "trireme/telemetry/run_summary.h"

#include <nlohmann/json.hpp>

#include "trireme/base/files.h"

namespace trireme::telemetry {

void write_summary(const std::filesystem::path& path, const Record& summary) {
  auto json = nlohmann::ordered_json::parse(to_json_line(summary));
  json.erase("event");
  write_file_atomic(path, json.dump(2) + "\n");
}

}  // namespace trireme::telemetry
