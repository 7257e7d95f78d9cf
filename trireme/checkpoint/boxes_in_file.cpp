#include "trireme/checkpoint/internal/boxes_in_file.h"

#include <nlohmann/json.hpp>

#include "trireme/base/bounded_json.h"
#include "trireme/base/error.h"
#include "trireme/base/json_whole.h"
#include "trireme/base/printable.h"

namespace trireme::checkpoint {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kBoxes = "boxes";
constexpr JsonLimits kBoxLimits{.levels = 4, .values = 5'000'000};

StoredBox parse_box(const HeaderEntry& entry, const nlohmann::json& json) {
  StoredBox stored{.name = json.at("tensor").get<std::string>(),
                   .global_sizes = wholes_in<std::int64_t>(json.at("sizes")),
                   .box = {.offsets = wholes_in<std::int64_t>(json.at("offsets")), .sizes = entry.shape}};
  std::int64_t elements = 16;  // bytes of the largest type; the sizes of an empty tensor are its strides
  for (const std::int64_t size : stored.global_sizes) {
    if (size != 0 && __builtin_mul_overflow(elements, size, &elements))
      throw DataError(text("its entry '", printable(entry.name), "' is of a tensor too large to be true"));
  }
  if (!lies_in(stored.box, stored.global_sizes))
    throw DataError(
        text("its entry '", printable(entry.name), "' does not lie in the tensor that it is a part of"));
  return stored;
}

}  // namespace

std::string entry_name(const Shard& shard) {
  return shard.is_whole() ? shard.name : shard.name + describe(shard.box());
}

std::map<std::string, std::string> metadata_of(const Shards& shards) {
  Json boxes = Json::object();
  for (const Shard& shard : shards) {
    if (shard.is_whole()) continue;
    append_member(boxes, entry_name(shard),
                  Json{{"tensor", shard.name}, {"sizes", shard.global_sizes}, {"offsets", shard.offsets}});
  }
  if (boxes.empty()) return {};
  return {{kBoxes, boxes.dump()}};
}

std::vector<StoredBox> stored_boxes(const SafetensorsHeader& header, const std::string& file) {
  try {
    nlohmann::json boxes = nlohmann::json::object();
    if (const auto found = header.metadata.find(kBoxes); found != header.metadata.end())
      boxes = parse_json<nlohmann::json>(found->second, kBoxLimits);
    std::vector<StoredBox> stored;
    for (const HeaderEntry& entry : header.entries) {
      const auto box = boxes.find(entry.name);
      stored.push_back(
          box == boxes.end()
              ? StoredBox{.name = entry.name, .global_sizes = entry.shape, .box = whole_box(entry.shape)}
              : parse_box(entry, *box));
    }
    return stored;
  } catch (const nlohmann::json::exception& error) {
    throw DataError(
        text(file, " does not say what its boxes are parts of (", printable(error.what(), 200), ")"));
  } catch (const DataError& error) {
    throw DataError(text(file, ": ", error.what()));
  }
}

}  // namespace trireme::checkpoint
