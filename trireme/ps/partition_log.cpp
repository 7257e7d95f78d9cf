#include "trireme/ps/internal/partition_log.h"

#include <cstring>
#include <utility>

#include "trireme/base/rounding.h"

namespace trireme::ps {
namespace {

constexpr std::size_t kAlignment_bytes = 64;  // values can be read in place

LogEntry::Encoded encode_with(const LogRecord& record,
                              const std::vector<std::span<const std::byte>>& values) {
  std::vector<std::byte> bytes = wire::encode(record);
  const auto record_bytes = static_cast<std::uint32_t>(bytes.size());
  std::size_t size = round_up(bytes.size(), kAlignment_bytes);
  std::size_t at = size;
  for (const auto& part : values) size += part.size();
  bytes.resize(size);
  for (const auto& part : values) {
    if (!part.empty()) std::memcpy(bytes.data() + at, part.data(), part.size());
    at += part.size();
  }
  return {record_bytes, wire::Buffer::of(std::move(bytes))};
}

}  // namespace

LogEntry LogEntry::of(LogRecord record, const std::vector<std::span<const std::byte>>& values) {
  Encoded encoded = encode_with(record, values);
  return {std::move(record), encoded.record_bytes, std::move(encoded.body)};
}

LogEntry::Encoded LogEntry::encoded() const {
  if (record_bytes != 0) return {record_bytes, body};
  return encode_with(record, {body.bytes()});
}

std::optional<LogEntry> LogEntry::read(std::uint32_t record_bytes, wire::Buffer body) {
  if (round_up(std::size_t{record_bytes}, kAlignment_bytes) > body.size()) return std::nullopt;
  auto record = wire::decode<LogRecord>(body.bytes().first(record_bytes));
  if (!record) return std::nullopt;
  return LogEntry{.record = std::move(*record), .record_bytes = record_bytes, .body = std::move(body)};
}

wire::Buffer LogEntry::values() const {
  const std::size_t start = round_up(std::size_t{record_bytes}, kAlignment_bytes);
  return body.part(start, body.size() - start);
}

}  // namespace trireme::ps
