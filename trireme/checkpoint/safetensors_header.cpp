#include "trireme/checkpoint/internal/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>

#include "trireme/base/bounded_json.h"
#include "trireme/base/error.h"
#include "trireme/base/printable.h"
#include "trireme/checkpoint/internal/dtype.h"

namespace trireme::checkpoint {
namespace {

using SortedJson = nlohmann::json;

template <class... Parts>
[[noreturn]] void fail(const std::string& file, const Parts&... parts) {
  throw DataError(text(file, " is not a valid safetensors file: ", parts...));
}

/// A header nests to depth 3. A tensor of four dims has 15 values.
constexpr JsonLimits kHeaderLimits{.levels = 8, .values = 5'000'000};

SortedJson parse_json_header(std::string_view text_of_header, const std::string& file) {
  SortedJson json;
  try {
    json = parse_json<SortedJson>(text_of_header, kHeaderLimits);
  } catch (const DataError& reason) {
    fail(file, "its header cannot be read: ", reason.what());
  }
  if (!json.is_object()) fail(file, "its header is not a JSON object");
  return json;
}

const SortedJson& member(const SortedJson& entry, const char* key, const std::string& name,
                         const std::string& file) {
  const auto found = entry.find(key);
  if (found == entry.end()) fail(file, "tensor '", printable(name), "' has no ", key);
  return *found;
}

std::uint64_t number(const SortedJson& value, const char* what, const std::string& name,
                     const std::string& file) {
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMost) {
    fail(file, "the ", what, " of tensor '", printable(name), "' hold ", printable(value.dump()),
         ", not a count");
  }
  return value.get<std::uint64_t>();
}

/// Bytes of shape and type. A product beyond 63 bits is an error, even in an empty tensor, where sizes are
/// strides.
std::uint64_t bytes_of(const HeaderEntry& entry, const std::string& file) {
  std::uint64_t bytes = c10::elementSize(entry.type);
  const bool is_empty = std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end();
  for (const std::int64_t dim : entry.shape) {
    if (dim == 0) continue;
    if (bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) /
                    static_cast<std::uint64_t>(dim)) {
      fail(file, "the shape of tensor '", printable(entry.name), "' is too large to be true");
    }
    bytes *= static_cast<std::uint64_t>(dim);
  }
  return is_empty ? 0 : bytes;
}

HeaderEntry parse_entry(const std::string& name, const SortedJson& json, std::uint64_t data_bytes,
                        const std::string& file) {
  if (!json.is_object()) fail(file, "the entry of tensor '", printable(name), "' is not a JSON object");
  HeaderEntry entry;
  entry.name = name;
  const SortedJson& dtype = member(json, "dtype", name, file);
  const auto type = dtype.is_string() ? dtype_of(dtype.get<std::string>()) : std::nullopt;
  if (!type) fail(file, "tensor '", printable(name), "' has the unknown dtype ", printable(dtype.dump()));
  entry.type = *type;
  const SortedJson& shape = member(json, "shape", name, file);
  if (!shape.is_array() || shape.size() > 64)
    fail(file, "the shape of tensor '", printable(name), "' is not a list of sizes");
  for (const SortedJson& dim : shape)
    entry.shape.push_back(static_cast<std::int64_t>(number(dim, "shape", name, file)));
  const SortedJson& offsets = member(json, "data_offsets", name, file);
  if (!offsets.is_array() || offsets.size() != 2)
    fail(file, "the data_offsets of tensor '", printable(name), "' are not two numbers");
  entry.begin = number(offsets[0], "data_offsets", name, file);
  entry.end = number(offsets[1], "data_offsets", name, file);
  if (entry.begin > entry.end || entry.end > data_bytes) {
    fail(file, "tensor '", printable(name), "' lies at bytes ", entry.begin, " to ", entry.end,
         ", but the file holds ", data_bytes, " bytes of data: truncated or damaged");
  }
  const std::uint64_t needed = bytes_of(entry, file);
  if (entry.end - entry.begin != needed) {
    fail(file, "tensor '", printable(name), "' needs ", needed, " bytes, its offsets give it ",
         entry.end - entry.begin);
  }
  return entry;
}

std::map<std::string, std::string> parse_metadata(const SortedJson& json, const std::string& file) {
  std::map<std::string, std::string> metadata;
  if (!json.is_object()) fail(file, "its __metadata__ is not a JSON object");
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) fail(file, "the value of '", printable(key), "' in its __metadata__ is not text");
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

void check_cover(const std::vector<HeaderEntry>& entries, std::uint64_t data_bytes, const std::string& file) {
  std::uint64_t covered = 0;
  for (const HeaderEntry& entry : entries) {
    if (entry.begin < covered) fail(file, "tensor '", printable(entry.name), "' overlaps the one before it");
    if (entry.begin > covered) fail(file, "there is a gap before tensor '", printable(entry.name), "'");
    covered = entry.end;
  }
  if (covered != data_bytes) {
    fail(file, "its tensors end after ", covered, " of ", data_bytes, " bytes of data");
  }
}

}  // namespace

SafetensorsHeader parse_header(std::string_view json_text, std::uint64_t data_bytes,
                               const std::string& file) {
  if (json_text.empty() || json_text.front() != '{') fail(file, "its header does not begin with '{'");
  const SortedJson json = parse_json_header(json_text, file);
  SafetensorsHeader header;
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") {
      header.metadata = parse_metadata(value, file);
    } else {
      header.entries.push_back(parse_entry(name, value, data_bytes, file));
    }
  }
  std::sort(header.entries.begin(), header.entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_cover(header.entries, data_bytes, file);
  return header;
}

std::string header_json(const SafetensorsHeader& header) {
  // Ordered by data offset, so that people can read the header, too.
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) json["__metadata__"] = header.metadata;
  for (const HeaderEntry& entry : header.entries) {
    append_member(json, entry.name,
                  nlohmann::ordered_json{{"dtype", dtype_name(entry.type, entry.name)},
                                         {"shape", entry.shape},
                                         {"data_offsets", {entry.begin, entry.end}}});
  }
  std::string result;
  try {
    result = json.dump();
  } catch (const nlohmann::json::exception& error) {
    throw InvalidArgument(text("a tensor name or metadata text is not valid UTF-8 (", error.what(), ")"));
  }
  result.append((8 - result.size() % 8) % 8, ' ');
  return result;
}

}  // namespace trireme::checkpoint
