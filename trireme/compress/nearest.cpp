#include "trireme/compress/nearest.h"

#include <array>

#include "trireme/base/error.h"
#include "trireme/compress/internal/codecs.h"

namespace trireme::compress {
namespace {

struct NearestRow {
  std::string_view name;
  const Codec& (*codec)();
};

constexpr std::array kNearestRows = {NearestRow{"bf16", bf16_codec}, NearestRow{"fp16", fp16_codec},
                                     NearestRow{"int8", nearest_int8_codec}};

}  // namespace

const Codec* nearest_codec(std::string_view name) {
  if (name == "none") return nullptr;
  for (const NearestRow& row : kNearestRows) {
    if (row.name == name) return &row.codec();
  }
  throw InvalidArgument(
      text("there is no codec '", name, "' that rounds to nearest", suggest(name, nearest_codec_names())));
}

std::vector<std::string> nearest_codec_names() {
  std::vector<std::string> names = {"none"};
  for (const NearestRow& row : kNearestRows) names.emplace_back(row.name);
  return names;
}

}  // namespace trireme::compress
