#include "trireme/checkpoint/internal/boxes_in_file.h"

#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/json_whole.h"

namespace trireme::checkpoint {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kBoxes = "boxes";

StoredBox parse_box(const HeaderEntry& entry, const Json& json) {
  StoredBox stored{.name = json.at("tensor").get<std::string>(),
                   .global_sizes = wholes_in<std::int64_t>(json.at("sizes")),
                   .box = {.offsets = wholes_in<std::int64_t>(json.at("offsets")), .sizes = entry.shape}};
  if (!lies_in(stored.box, stored.global_sizes))
    throw DataError(text("its entry '", entry.name, "' does not lie in the tensor that it is a part of"));
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
    boxes[entry_name(shard)] = {
        {"tensor", shard.name}, {"sizes", shard.global_sizes}, {"offsets", shard.offsets}};
  }
  if (boxes.empty()) return {};
  return {{kBoxes, boxes.dump()}};
}

std::vector<StoredBox> stored_boxes(const SafetensorsHeader& header, const std::string& file) {
  try {
    Json boxes = Json::object();
    if (const auto found = header.metadata.find(kBoxes); found != header.metadata.end())
      boxes = Json::parse(found->second);
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
    throw DataError(text(file, " does not say what its boxes are parts of (", error.what(), ")"));
  } catch (const DataError& error) {
    throw DataError(text(file, ": ", error.what()));
  }
}

}  // namespace trireme::checkpoint
