// Files with very many entries. Readers and writers take linear time, and report a file with too many
// entries.

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "tests/support/cpu_limit.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/zip_archive.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/internal/manifest.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/checkpoint/shard_reader.h"
#include "trireme/checkpoint/tensor_match.h"
#include "trireme/checkpoint/weights_file.h"

namespace trireme::checkpoint {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int kMany = 200'000;
/// Seconds. Linear code takes one or two, and quadratic code takes minutes.
constexpr int kMaxSeconds = 40;

class SecurityManyTensors : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }
  void write_safetensors_header(const std::string& json, const std::string& data = "") const {
    write("m.safetensors", test::number_bytes(json.size(), 8) + json + data);
  }
  std::string header_of(int tensors) const {
    std::string json = "{";
    for (int i = 0; i < tensors; ++i)
      json += "\"" + std::to_string(i) + R"(":{"dtype":"F32","shape":[0,1],"data_offsets":[0,0]},)";
    json.back() = '}';
    return json;
  }
  /// Checks that `body` is true and takes linear time.
  template <class Body>
  void expect_linear(const Body& body) const {
    const auto run = [&] {
      test::limit_cpu_time(kMaxSeconds);
      std::_Exit(body() ? 0 : 1);
    };
    EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
  }
  template <class Read>
  static std::string error_of(const Read& read) {
    try {
      read();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  test::TemporaryFolder folder_;
};

TEST_F(SecurityManyTensors, SafetensorsTakeLinearTime) {
  write_safetensors_header(header_of(kMany));
  expect_linear([&] {
    const TensorMap tensors = load_safetensors(folder_ / "m.safetensors").tensors;
    save_safetensors(folder_ / "copy.safetensors", tensors);
    return inspect_safetensors(folder_ / "copy.safetensors").tensors.size() == kMany;
  });
}

TEST_F(SecurityManyTensors, HeadersBeyondTheLimitAreErrors) {
  std::string json = "{\"a\":[";
  for (int i = 0; i < 5'000'001; ++i) json += "0,";
  json.back() = ']';
  write_safetensors_header(json + "}");
  EXPECT_THAT(error_of([&] { inspect_safetensors(folder_ / "m.safetensors"); }),
              HasSubstr("more than 5000000 values"));
}

TEST_F(SecurityManyTensors, ErrorsEscapeNames) {
  const std::string name = R"(a\u001b[2J\n)" + std::string(10'000, 'x');
  write_safetensors_header("{\"" + name + R"(":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", "0000");
  EXPECT_THAT(
      error_of([&] { inspect_safetensors(folder_ / "m.safetensors"); }),
      AllOf(HasSubstr("'a\\x1b[2J\\nxxx"), Not(HasSubstr("\x1b")), Not(HasSubstr(std::string(200, 'x')))));
}

TEST_F(SecurityManyTensors, ManifestsAreReadInLinearTime) {
  std::string json =
      R"({"format":"trireme training checkpoint","version":3,"step":1,"epoch":0,"batch":0,"files":{)";
  for (int i = 0; i < kMany; ++i) json += "\"" + std::to_string(i) + R"(":{"bytes":1,"xxh3":""},)";
  json.back() = '}';
  write("manifest.json", json + R"(,"xxh3":""})");
  write("model.safetensors", "");
  expect_linear([&] {
    return error_of([&] { read_manifest(folder_.path()); }).find("it is damaged: its XXH3 is") !=
           std::string::npos;
  });
}

TEST_F(SecurityManyTensors, WholeManifestsAreCheckedInLinearTime) {
  Manifest manifest{.version = 3, .files = {}};
  constexpr int kWriters = 40'000;
  for (const FileKind kind : {FileKind::kModel, FileKind::kOptimizer}) {
    for (int writer = 0; writer < kWriters; ++writer)
      manifest.files.push_back({.name = name_of_file(kind, writer, kWriters), .bytes = 1, .xxh3 = "0"});
  }
  manifest.files.push_back({.name = kConfigFile, .bytes = 1, .xxh3 = "0"});
  expect_linear([&] {
    write_manifest(folder_.path(), manifest);
    return read_manifest(folder_.path()).files.size() == 2 * kWriters + 1;
  });
}

TEST_F(SecurityManyTensors, ManifestsHaveALimitOfSize) {
  write("manifest.json", "{}");
  std::filesystem::resize_file(folder_ / "manifest.json", std::uint64_t{1} << 33);
  EXPECT_THAT(error_of([&] { read_manifest(folder_.path()); }),
              HasSubstr("it has 8589934592 bytes, and at most"));
  write("index.json", "{}");
  std::filesystem::resize_file(folder_ / "index.json", std::uint64_t{1} << 33);
  EXPECT_THAT(error_of([&] { load_weights_file(folder_ / "index.json"); }), HasSubstr("and at most"));
}

TEST_F(SecurityManyTensors, TiedCopiesAreFoundInLinearTime) {
  TensorMap found, expected;
  const at::Tensor one = at::zeros({1, 1}), other = at::ones({2, 2});
  for (int i = 0; i < 100; ++i) expected.emplace(std::to_string(i), one);
  for (int i = 0; i < kMany; ++i) found.emplace(std::to_string(i), i < 100 ? one : other);
  found.emplace("copy", at::zeros({1, 1}));
  expect_linear([&] { return drop_tied_copies(found, expected) == std::vector<std::string>{"copy"}; });
}

/// A file with two parts of the tensor 'a', of four elements each, at the positions that the header claims.
std::string parts_of_a(const std::string& sizes, const std::string& offset, const std::string& other_offset) {
  const auto box = [&](const std::string& name, const std::string& at) {
    return "\\\"" + name + "\\\":{\\\"tensor\\\":\\\"a\\\",\\\"sizes\\\":" + sizes +
           ",\\\"offsets\\\":" + at + "}";
  };
  return "{\"__metadata__\":{\"boxes\":\"{" + box("p", offset) + "," + box("q", other_offset) +
         R"(}"},"p":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"q":{"dtype":"F32","shape":[2,2],"data_offsets":[16,32]}})";
}

TEST_F(SecurityManyTensors, PartsThatLeaveElementsOutAreErrors) {
  const auto error_of_parts = [&](const std::string& sizes, const std::string& offset,
                                  const std::string& other) {
    write_safetensors_header(parts_of_a(sizes, offset, other), std::string(32, '\1'));
    return error_of([&] { ShardReader::of_files({folder_ / "m.safetensors"}); });
  };
  EXPECT_EQ(error_of_parts("[4,2]", "[0,0]", "[2,0]"), "no error");
  EXPECT_EQ(error_of_parts("[2,4]", "[0,2]", "[0,0]"), "no error");
  EXPECT_THAT(error_of_parts("[4,2]", "[0,0]", "[0,0]"), HasSubstr("elements of 'a' twice"));
  EXPECT_THAT(error_of_parts("[4,2]", "[1,0]", "[2,0]"), HasSubstr("elements of 'a' twice"));
  EXPECT_THAT(error_of_parts("[4,3]", "[0,0]", "[2,0]"), HasSubstr("8 of the 12 elements"));
  EXPECT_THAT(error_of_parts("[4,2]", "[3,0]", "[2,0]"), HasSubstr("does not lie in the tensor"));
  EXPECT_THAT(error_of_parts("[9223372036854775807,9223372036854775807]", "[0,0]", "[2,0]"),
              HasSubstr("too large to be true"));
}

TEST_F(SecurityManyTensors, IndexesAreReadWithLimits) {
  write("index.json", "{\"weight_map\":" + std::string(100'000, '['));
  EXPECT_THAT(error_of([&] { load_weights_file(folder_ / "index.json"); }), HasSubstr("levels deep"));
  write("index.json", R"({"weight_map":{"a":"\u001b[2J/../x"}})");
  EXPECT_THAT(error_of([&] { load_weights_file(folder_ / "index.json"); }),
              AllOf(HasSubstr("names '\\x1b[2J/../x'"), Not(HasSubstr("\x1b"))));
}

}  // namespace
}  // namespace trireme::checkpoint
