#pragma once
// Bytes of a message as f32: in place where they lie so that a float may be read there, else as a copy. A
// value; the bytes outlive it.

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

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

}  // namespace trireme::ps
