// The manifest of packed data, unchanged and with a corrected checksum.
#include <nlohmann/json.hpp>

#include "tests/fuzz/reading.h"
#include "trireme/base/crc32c.h"
#include "trireme/data/internal/packed_manifest.h"

using namespace trireme;
using Json = nlohmann::ordered_json;

extern "C" int fuzz_packed_manifest(const std::uint8_t* bytes, std::size_t size) {
  static const fuzz::Folder folder;
  const std::string_view input = fuzz::text_in(bytes, size);
  folder.put(data::kManifestFile, input);
  fuzz::is_read([&] { data::read_manifest(folder.path()); });
  Json json = Json::parse(input, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return 0;
  json.erase("crc32c");
  json["crc32c"] = crc32c(json.dump(2, ' ', false, Json::error_handler_t::replace));
  folder.put(data::kManifestFile, json.dump());
  fuzz::is_read([&] {
    const data::PackedManifest manifest = data::read_manifest(folder.path());
    for (const data::FieldLayout& field : manifest.layout.fields) describe(field);
    if (!manifest.tokens && manifest.layout.fixed()) manifest.layout.bytes();
  });
  return 0;
}
