#include "trireme/telemetry/run_summary.h"

#include <nlohmann/json.hpp>

#include "trireme/base/bounded_json.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"

namespace trireme::telemetry {

using Json = nlohmann::ordered_json;

void write_summary(const std::filesystem::path& path, const Record& summary) {
  auto json = Json::parse(to_json_line(summary));
  json.erase("event");
  write_file_atomic(path, json.dump(2) + "\n");
}

Record parse_summary(const std::string& content, const std::filesystem::path& path) {
  Json summary;
  try {
    summary = parse_json<Json>(content, {.levels = 8, .values = 20'000});
  } catch (const DataError& reason) {
    throw DataError(text(path.string(), ": expected one JSON object: ", reason.what()));
  }
  if (!summary.is_object()) throw DataError(text(path.string(), ": expected one JSON object"));
  Record record{.event = "end", .fields = {}};
  for (const auto& [name, value] : summary.items()) {
    if (value.is_number_integer()) record.fields.emplace_back(name, value.get<std::int64_t>());
    if (value.is_number_float()) record.fields.emplace_back(name, value.get<double>());
    if (value.is_string()) record.fields.emplace_back(name, value.get<std::string>());
  }
  if (!summary.contains("status") || !summary["status"].is_string()) {
    throw DataError(text(path.string(), ": expected a text 'status'; it is no summary of a run"));
  }
  return record;
}

}  // namespace trireme::telemetry
