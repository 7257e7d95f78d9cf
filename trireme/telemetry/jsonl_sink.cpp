#include "trireme/telemetry/jsonl_sink.h"

#include <nlohmann/json.hpp>

#include "trireme/base/bounded_file.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"
#include "trireme/telemetry/internal/appended_file.h"

namespace trireme::telemetry {

JsonlSink::JsonlSink(const std::filesystem::path& path) : file_(std::make_unique<AppendedFile>(path)) {}

JsonlSink::~JsonlSink() = default;

void JsonlSink::write(const Record& record) { file_->append(to_json_line(record) + "\n"); }

namespace {

constexpr std::uint64_t kMaxMetricsBytes = std::uint64_t{1} << 30;  ///< of a file that a resume reads

/// Records without a step are from the start of the run and stay. Invalid records and invalid steps are
/// dropped.
bool is_within(const nlohmann::json& record, std::int64_t last_step) {
  if (!record.is_object()) return false;
  const auto step = record.find("step");
  return step == record.end() || (step->is_number() && step->get<double>() <= static_cast<double>(last_step));
}

}  // namespace

void drop_lines_after(const std::filesystem::path& path, std::int64_t last_step) {
  if (!std::filesystem::exists(path)) return;
  std::string kept;
  for (const std::string& line : split(read_bounded_file(path, kMaxMetricsBytes, "list of metrics"), '\n')) {
    const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (is_within(record, last_step)) kept += line + "\n";
  }
  write_file_atomic(path, kept);
}

}  // namespace trireme::telemetry
