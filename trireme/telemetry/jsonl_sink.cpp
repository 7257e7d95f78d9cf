#include "trireme/telemetry/jsonl_sink.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::telemetry {

JsonlSink::JsonlSink(const std::filesystem::path& path)
    : path_(path), descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
  if (descriptor_ < 0) throw DataError(text("cannot open ", path.string(), ": ", std::strerror(errno)));
}

JsonlSink::~JsonlSink() { ::close(descriptor_); }

void JsonlSink::write(const Record& record) {
  const std::string line = to_json_line(record) + "\n";
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = ::write(descriptor_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw DataError(text("cannot write ", path_.string(), ": ", std::strerror(errno)));
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

void drop_lines_after(const std::filesystem::path& path, std::int64_t last_step) {
  if (!std::filesystem::exists(path)) return;
  std::string kept;
  for (const std::string& line : split(read_file(path), '\n')) {
    const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (record.is_object() && record.value("step", std::int64_t{0}) <= last_step) kept += line + "\n";
  }
  write_file_atomic(path, kept);
}

}  // namespace trireme::telemetry
