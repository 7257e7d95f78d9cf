#pragma once
// Common parts of the tests of packed data.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "tests/unit/data/idx_samples.h"
#include "trireme/base/error.h"
#include "trireme/data/pack.h"

namespace trireme::test {

/// The message of the exception of `body`.
template <class Expected = DataError, class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const Expected& error) {
    return error.what();
  }
  return "no error";
}

/// Writes idx files of a small synthetic data set into a folder.
inline void write_idx_files(const std::filesystem::path& folder, std::uint32_t train,
                            std::uint32_t held_out) {
  const auto write = [&](const std::string& prefix, std::uint32_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::string pixels, labels;
    for (std::uint32_t i = 0; i < count * 5 * 4; ++i) pixels += static_cast<char>(random() & 255);
    for (std::uint32_t i = 0; i < count; ++i) labels += static_cast<char>(random() % 10);
    write_bytes(folder / (prefix + "-images-idx3-ubyte"), idx_bytes({count, 5, 4}, pixels));
    write_bytes(folder / (prefix + "-labels-idx1-ubyte"), idx_bytes({count}, labels));
  };
  write("train", train, 1);
  write("t10k", held_out, 2);
}

inline void expect_same_bits(const Fields& found, const Fields& expected) {
  ASSERT_TRUE(batch::same_names(found, expected));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(found.at(i).scalar_type(), expected.at(i).scalar_type());
    ASSERT_EQ(found.at(i).sizes(), expected.at(i).sizes());
    const at::Tensor one = found.at(i).contiguous(), other = expected.at(i).contiguous();
    const auto bytes_of = [](const at::Tensor& tensor) {
      return std::string_view(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
    };
    ASSERT_TRUE(bytes_of(one) == bytes_of(other));
  }
}

/// Compares sample by sample, and in batches: of neighbors, in random order, with a duplicate, and empty.
inline void expect_same_samples(const data::Dataset& found, const data::Dataset& expected) {
  ASSERT_EQ(found.size(), expected.size());
  const auto same = [](const data::Example& one, const data::Example& other) {
    expect_same_bits(one.input, other.input);
    expect_same_bits(one.target, other.target);
  };
  for (std::int64_t i = 0; i < expected.size(); ++i) same(found.get(i), expected.get(i));
  std::vector<std::int64_t> indices(static_cast<std::size_t>(expected.size()));
  std::iota(indices.begin(), indices.end(), 0);
  same(found.get_batch(indices), expected.get_batch(indices));
  std::shuffle(indices.begin(), indices.end(), std::mt19937(3));
  indices.resize((indices.size() + 1) / 2);
  indices.push_back(indices.front());
  same(found.get_batch(indices), expected.get_batch(indices));
  expect_same_bits(found.get_targets(indices), expected.get_batch(indices).target);
  same(found.get_batch({}), expected.get_batch({}));
}

/// Changes the byte at `offset` of a file.
inline void flip_byte(const std::filesystem::path& path, std::uint64_t offset) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(offset));
  const char byte = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 0x10));
}

}  // namespace trireme::test
