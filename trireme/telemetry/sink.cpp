#include "trireme/telemetry/sink.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace trireme::telemetry {

double Record::number(std::string_view name, double otherwise) const {
  for (const auto& [key, value] : fields) {
    if (key != name) continue;
    if (const auto* real = std::get_if<double>(&value)) return *real;
    if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  }
  return otherwise;
}

std::string Record::words(std::string_view name) const {
  for (const auto& [key, value] : fields) {
    if (key != name) continue;
    if (const auto* found = std::get_if<std::string>(&value)) return *found;
  }
  return "";
}

bool Record::has(std::string_view name) const {
  return std::any_of(fields.begin(), fields.end(), [&](const auto& field) { return field.first == name; });
}

std::string to_json_line(const Record& record) {
  nlohmann::ordered_json line;
  line["event"] = record.event;
  for (const auto& [name, value] : record.fields) {
    std::visit([&, &key = name](const auto& held) { line[key] = held; }, value);
  }
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace trireme::telemetry
