#include "trireme/telemetry/tensorboard_sink.h"

#include <bit>
#include <cstring>
#include <optional>

#include "trireme/base/bounded_file.h"
#include "trireme/base/crc32c.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"
#include "trireme/base/unix_time.h"
#include "trireme/telemetry/internal/appended_file.h"

namespace trireme::telemetry {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFileVersion = "brain.Event:2";
constexpr const char* kFileMark = ".tfevents.";

// Fields of the messages, and how the wire format of protocol buffers holds a field.
enum EventField { kWallTime = 1, kStep = 2, kVersion = 3, kSummary = 5 };
enum SummaryField { kValue = 1 };
enum ValueField { kTag = 1, kSimpleValue = 2 };
enum WireType { kVarint = 0, kEightBytes = 1, kLengthDelimited = 2, kFourBytes = 5 };

template <class Word>
std::string little_endian(Word word) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof word; ++i) bytes += static_cast<char>(word >> (8 * i) & 0xFF);
  return bytes;
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7F) | 0x80);
  return bytes + static_cast<char>(value);
}

std::string key(int field, WireType type) { return varint(static_cast<std::uint64_t>(field << 3 | type)); }

std::string bytes_field(int field, const std::string& bytes) {
  return key(field, kLengthDelimited) + varint(bytes.size()) + bytes;
}

std::string double_field(int field, double value) {
  return key(field, kEightBytes) + little_endian(std::bit_cast<std::uint64_t>(value));
}

std::string float_field(int field, float value) {
  return key(field, kFourBytes) + little_endian(std::bit_cast<std::uint32_t>(value));
}

std::string step_field(std::int64_t step) {
  return key(kStep, kVarint) + varint(static_cast<std::uint64_t>(step));
}

/// A checksum of data that holds checksums would be weak, so it is rotated and shifted by a constant.
std::uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u; }

std::string framed(const std::string& payload) {
  const std::string length = little_endian(std::uint64_t{payload.size()});
  return length + little_endian(masked_crc(length)) + payload + little_endian(masked_crc(payload));
}

/// A name that sorts after those of earlier starts, also of a start in the same second.
fs::path new_file(const fs::path& folder) {
  make_folder(folder);
  for (auto second = static_cast<std::int64_t>(unix_now_s());; ++second) {
    fs::path path = folder / text("events.out", kFileMark, second, ".trireme");
    if (!fs::exists(path)) return path;
  }
}

std::string scalar(const std::string& tag, double value) {
  return bytes_field(kValue, bytes_field(kTag, tag) + float_field(kSimpleValue, static_cast<float>(value)));
}

// ---- reading a file again on a resume ----

std::uint64_t word_at(std::string_view bytes, std::size_t at, std::size_t size) {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < size; ++i)
    word |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return word;
}

/// Length of the complete record at the start of `bytes`; nullopt: it is incomplete or invalid.
std::optional<std::size_t> record_length(std::string_view bytes) {
  constexpr std::size_t kHead = 12, kTail = 4;
  if (bytes.size() < kHead + kTail || word_at(bytes, 8, 4) != masked_crc(bytes.substr(0, 8)))
    return std::nullopt;
  const std::uint64_t payload = word_at(bytes, 0, 8);
  if (payload > bytes.size() - kHead - kTail) return std::nullopt;
  return kHead + payload + kTail;
}

/// The step of an event that Trireme has written. It is stored after the eight bytes of the time.
std::int64_t step_of(std::string_view record) {
  constexpr std::size_t kPayload = 12, kKey = kPayload + 1 + sizeof(double);
  if (record.size() <= kKey || record[kKey] != (kStep << 3 | kVarint)) return 0;
  std::uint64_t step = 0;
  int shift = 0;
  for (std::size_t at = kKey + 1; at < record.size() && shift < 64; ++at, shift += 7) {
    step |= static_cast<std::uint64_t>(record[at] & 0x7F) << shift;
    if ((record[at] & 0x80) == 0) break;
  }
  return static_cast<std::int64_t>(step);
}

constexpr std::uint64_t kMaxEventsBytes = std::uint64_t{1} << 30;  ///< of a file that a resume reads

void drop_from_file(const fs::path& path, std::int64_t last_step) {
  const std::string content = read_bounded_file(path, kMaxEventsBytes, "file of events");
  std::string kept;
  std::string_view rest = content;
  for (auto length = record_length(rest); length; length = record_length(rest)) {
    if (step_of(rest.substr(0, *length)) <= last_step) kept += rest.substr(0, *length);
    rest.remove_prefix(*length);
  }
  if (kept != content) write_file_atomic(path, kept);
}

}  // namespace

TensorboardSink::TensorboardSink(const fs::path& folder)
    : file_(std::make_unique<AppendedFile>(new_file(folder))) {
  file_->append(framed(double_field(kWallTime, unix_now_s()) + bytes_field(kVersion, kFileVersion)));
}

TensorboardSink::~TensorboardSink() = default;

void TensorboardSink::write(const Record& record) {
  if (!record.has("step")) return;
  std::string summary;
  for (const auto& [name, value] : record.fields) {
    if (name == "step" || name == "time_s" || std::holds_alternative<std::string>(value)) continue;
    summary += scalar(text(record.event, "/", name), record.number(name, 0));
  }
  const auto step = static_cast<std::int64_t>(record.number("step", 0));
  file_->append(
      framed(double_field(kWallTime, unix_now_s()) + step_field(step) + bytes_field(kSummary, summary)));
}

void drop_events_after(const fs::path& folder, std::int64_t last_step) {
  if (!fs::exists(folder)) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const bool is_ours = entry.path().filename().string().find(kFileMark) != std::string::npos;
    if (is_ours && entry.is_regular_file()) drop_from_file(entry.path(), last_step);
  }
}

}  // namespace trireme::telemetry
