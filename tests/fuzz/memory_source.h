#pragma once
// The input as a source of bytes. Immutable; thread-safe.

#include <cstring>
#include <string>
#include <string_view>

#include "trireme/data/byte_source.h"

namespace trireme::fuzz {

class MemorySource : public data::ByteSource {
 public:
  explicit MemorySource(std::string_view content) : content_(content) {}
  const std::string& name() const override { return name_; }
  std::int64_t size() const override { return static_cast<std::int64_t>(content_.size()); }
  const std::string& version() const override { return name_; }
  void read(std::int64_t offset, std::span<std::byte> into) const override {
    data::check_range(*this, offset, into.size());
    if (!into.empty()) std::memcpy(into.data(), content_.data() + offset, into.size());
  }

 private:
  std::string_view content_;
  std::string name_ = "input";
};

}  // namespace trireme::fuzz
