// A record of packed data and its declared layout: JSON, the byte 0x1f, the record.
#include <nlohmann/json.hpp>

#include "tests/fuzz/reading.h"
#include "trireme/data/internal/record_layout.h"

using namespace trireme;
using Json = nlohmann::ordered_json;

extern "C" int fuzz_packed_record(const std::uint8_t* bytes, std::size_t size) {
  const auto parts = fuzz::parts_of(fuzz::text_in(bytes, size), 2);
  const Json json = Json::parse(parts.front(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || parts.size() < 2) return 0;
  data::RecordLayout layout;
  try {  // readers of manifests also catch the errors of JSON
    if (!fuzz::is_read([&] { layout = data::layout_from_json(json); })) return 0;
  } catch (const Json::exception&) {
    return 0;
  }
  fuzz::is_read([&] { data::parse_record(layout, parts[1]); });
  if (!layout.fixed() || layout.bytes() != parts[1].size()) return 0;
  fuzz::is_read([&] {
    const data::Example batch = data::empty_example(layout, 2);
    const data::RowWriter rows(layout, batch);
    rows.put(parts[1], 1);
  });
  return 0;
}
