#include "trireme/checkpoint/internal/xxh3.h"

#ifndef NDEBUG
#define XXH_NO_INLINE_HINTS 1  // gcc cannot inline some of them with -Og and sanitizers
#endif
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/open_file.h"
#include "trireme/checkpoint/internal/dtype.h"
#include "trireme/checkpoint/safetensors.h"

namespace trireme::checkpoint {

struct Xxh3::State {
  XXH3_state_t xxh3;
};

Xxh3::Xxh3() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh3); }
Xxh3::~Xxh3() = default;

void Xxh3::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_64bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

void Xxh3::add(std::uint64_t number) { add(std::as_bytes(std::span(&number, 1))); }

void Xxh3::add(const std::string& words) {
  add(std::uint64_t{words.size()});
  add(std::as_bytes(std::span(words)));
}

std::string Xxh3::hex() const {
  std::array<char, 17> digits;
  std::snprintf(digits.data(), digits.size(), "%016llx",
                static_cast<unsigned long long>(XXH3_64bits_digest(&state_->xxh3)));
  return digits.data();
}

std::string xxh3_of_file(const std::filesystem::path& path) {
  if (!open_to_read(path).is_open())
    throw DataError(text("cannot open ", path.string(), ": ", std::strerror(errno)));
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw DataError(text("cannot open ", path.string(), ": ", std::strerror(errno)));
  Xxh3 hash;
  std::vector<char> buffer(1 << 20);
  while (stream) {
    stream.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    hash.add(std::as_bytes(std::span(buffer).first(static_cast<std::size_t>(stream.gcount()))));
  }
  if (stream.bad()) throw DataError(text("cannot read ", path.string(), ": ", std::strerror(errno)));
  return hash.hex();
}

void TensorMapXxh3::begin(const TensorLayout& tensor) {
  hash_.add(tensor.name);
  hash_.add(dtype_name(tensor.type, tensor.name));
  hash_.add(static_cast<std::uint64_t>(tensor.shape.size()));
  for (const std::int64_t dim : tensor.shape) hash_.add(static_cast<std::uint64_t>(dim));
}

std::string xxh3_of(const TensorMap& tensors) {
  TensorMapXxh3 hash;
  for (const auto& [name, tensor] : tensors) {
    hash.begin({.name = name, .type = tensor.scalar_type(), .shape = tensor.sizes().vec()});
    const at::Tensor values = tensor.detach().cpu().contiguous();
    hash.add({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
  }
  return hash.hex();
}

}  // namespace trireme::checkpoint
