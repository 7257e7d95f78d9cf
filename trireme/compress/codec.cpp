#include "trireme/compress/codec.h"

#include <array>

#include "trireme/base/error.h"
#include "trireme/compress/internal/codecs.h"

namespace trireme::compress {
namespace {

struct NamedCodec {
  std::string_view name;
  const Codec& (*codec)();
};

constexpr std::string_view kNone = "none";
constexpr std::array kCodecs = {
    NamedCodec{"fp16", fp16_codec}, NamedCodec{"bf16", bf16_codec}, NamedCodec{"int8", int8_codec},
    NamedCodec{"qsgd", qsgd_codec}, NamedCodec{"sign", sign_codec}, NamedCodec{"top-k", top_k_codec},
};

}  // namespace

const Codec* codec(std::string_view name) {
  if (name == kNone) return nullptr;
  for (const NamedCodec& row : kCodecs) {
    if (row.name == name) return &row.codec();
  }
  throw InvalidArgument(text("there is no codec '", name, "'", suggest(name, codec_names())));
}

std::vector<std::string> codec_names() {
  std::vector<std::string> names = {std::string(kNone)};
  for (const NamedCodec& row : kCodecs) names.emplace_back(row.name);
  return names;
}

}  // namespace trireme::compress
