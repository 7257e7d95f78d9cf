// The manifest of a training checkpoint, unchanged and with a corrected checksum.
#include <nlohmann/json.hpp>

#include "tests/fuzz/reading.h"
#include "trireme/checkpoint/internal/manifest.h"
#include "trireme/checkpoint/internal/xxh3.h"

using namespace trireme;
using Json = nlohmann::ordered_json;

extern "C" int fuzz_checkpoint_manifest(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  const std::string_view input = fuzz::text_in(data, size);
  folder.put(checkpoint::kManifestFile, input);
  fuzz::is_read([&] { checkpoint::read_manifest(folder.path()); });
  Json json = Json::parse(input, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return 0;
  json.erase("xxh3");
  checkpoint::Xxh3 hash;
  hash.add(json.dump(2));
  json["xxh3"] = hash.hex();
  folder.put(checkpoint::kManifestFile, json.dump());
  fuzz::is_read([&] {
    const checkpoint::Manifest manifest = checkpoint::read_manifest(folder.path());
    for (const checkpoint::FileRecord& record : manifest.files)
      fuzz::is_read([&] { checkpoint::problem_of(folder.path(), record); });
  });
  return 0;
}
