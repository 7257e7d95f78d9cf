#pragma once
// XXH3 with 64 bits (Collet, xxHash), fed in pieces. Checks against damage, not against forgery. A value; one
// thread at a time.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace trireme::checkpoint {

class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  Xxh3(const Xxh3&) = delete;
  Xxh3& operator=(const Xxh3&) = delete;

  void add(std::span<const std::byte> bytes);
  /// Adds a number as 8 little-endian bytes.
  void add(std::uint64_t number);
  /// Adds length and bytes, so that "ab" + "c" differs from "a" + "bc".
  void add(const std::string& words);
  /// 16 hex digits.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct TensorLayout;

/// The xxh3_of of tensors, which come one after the other in name order, each in pieces.
class TensorMapXxh3 {
 public:
  void begin(const TensorLayout& tensor);
  void add(std::span<const std::byte> bytes) { hash_.add(bytes); }
  std::string hex() const { return hash_.hex(); }

 private:
  Xxh3 hash_;
};

/// Over the bytes of a file. Throws DataError when it cannot be read.
std::string xxh3_of_file(const std::filesystem::path& path);

}  // namespace trireme::checkpoint
