#pragma once
// Bytes of a message as f32: in place where their alignment allows it, else as a copy, which the bytes
// outlive; and the inverse, plain or encoded. Values.

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "trireme/compress/codec.h"
#include "trireme/wire/buffer.h"

namespace trireme::ps {

class AlignedFloats {
 public:
  explicit AlignedFloats(std::span<const std::byte> bytes) {
    const std::size_t count = bytes.size() / sizeof(float);
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(float) == 0) {
      view_ = {reinterpret_cast<const float*>(bytes.data()), count};
      return;
    }
    copy_.resize(count);
    if (count > 0) std::memcpy(copy_.data(), bytes.data(), count * sizeof(float));
    view_ = copy_;
  }
  AlignedFloats(const AlignedFloats&) = delete;
  AlignedFloats& operator=(const AlignedFloats&) = delete;
  std::span<const float> get() const { return view_; }

 private:
  std::vector<float> copy_;
  std::span<const float> view_;
};

/// These floats as the body of a message.
inline wire::Buffer in_buffer(std::vector<float> values) {
  const auto kept = std::make_shared<const std::vector<float>>(std::move(values));
  return wire::Buffer(kept, std::as_bytes(std::span(*kept)));
}

/// The same, encoded.
inline wire::Buffer in_buffer(const compress::Codec& codec, std::span<const float> values,
                              const compress::Codec::Options& options) {
  const std::size_t most = codec.most_bytes(values.size(), options);
  const std::shared_ptr<std::byte[]> bytes = std::make_shared_for_overwrite<std::byte[]>(most);
  return wire::Buffer(bytes, {bytes.get(), codec.encode(values, options, {bytes.get(), most})});
}

}  // namespace trireme::ps
