#include "trireme/checkpoint/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/random.h"

namespace trireme::checkpoint {
namespace {

using test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;

/// A file of any header and data.
std::string file_of(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8)
    bytes += static_cast<char>((std::uint64_t{header.size()} >> shift) & 255);
  return bytes + header + data;
}

void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// The error of reading these bytes. Any other outcome than DataError or a result fails the test.
std::string error_of(const TemporaryFolder& folder, const std::string& bytes) {
  // A new file each time, because ext4 syncs a file that is truncated and rewritten.
  std::filesystem::remove(folder / "file");
  write_bytes(folder / "file", bytes);
  try {
    load_safetensors(folder / "file");
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

std::string error_of(const std::string& bytes) { return error_of(TemporaryFolder(), bytes); }

std::string saved(const TensorMap& tensors, const std::map<std::string, std::string>& metadata = {}) {
  const TemporaryFolder folder;
  save_safetensors(folder / "file", tensors, metadata);
  return read_file(folder / "file");
}

TensorMap small_tensors() { return {{"a", at::arange(3, at::kInt)}, {"b", at::ones({2, 1}, at::kBool)}}; }

TEST(Safetensors, EveryTypeAndShapeRoundTrips) {
  const TemporaryFolder folder;
  TensorMap tensors;
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt,
                                    at::kShort, at::kChar, at::kByte, at::kBool}) {
    tensors[c10::toString(type)] = at::arange(6).to(type).reshape({2, 3});
  }
  tensors["no dims"] = at::full({}, 7.5);
  tensors["no elements"] = at::zeros({0, 3});
  tensors["transposed"] = at::arange(6, at::kFloat).reshape({2, 3}).t();
  tensors["part"] = at::arange(6, at::kFloat).slice(0, 1, 6, 2);
  tensors["parameter"] = at::ones({2}).set_requires_grad(true);
  save_safetensors(folder / "file", tensors, {{"step", "12"}, {"text", "a \"quoted\" line\n"}});
  const SafetensorsFile file = load_safetensors(folder / "file");
  EXPECT_EQ(file.metadata.at("text"), "a \"quoted\" line\n");
  ASSERT_EQ(file.tensors.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(file.tensors.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(file.tensors.at(name).equal(tensor)) << name;
  }
}

TEST(Safetensors, ComplexNumbersOfTwoFloatsAreC64) {
  const TemporaryFolder folder;
  const at::Tensor parts = at::arange(6, at::kFloat).view({3, 2});
  save_safetensors(folder / "file", {{"rotary", at::view_as_complex(parts)}});
  EXPECT_THAT(read_file(folder / "file"), HasSubstr(R"("dtype":"C64","shape":[3])"));
  const at::Tensor loaded = load_safetensors(folder / "file").tensors.at("rotary");
  ASSERT_EQ(loaded.scalar_type(), at::kComplexFloat);
  EXPECT_TRUE(at::view_as_real(loaded).equal(parts));
}

TEST(Safetensors, UnsupportedTypeIsErrorWithTensorName) {
  EXPECT_THAT(
      [] {
        saved({{"rotary", at::ones({2}, at::kComplexDouble)}});
      },
      testing::ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("'rotary'"), HasSubstr("ComplexDouble"),
                                                    HasSubstr("expected one of f64, f32, f16, bf16, i64"),
                                                    HasSubstr("at::view_as_real"))));
}

TEST(Safetensors, TheFileIsExactlyTheFormat) {
  // Header and data as in the specification, padded to 8 bytes with spaces.
  const std::string header =
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"I32","shape":[3],"data_offsets":[0,12]},)"
      R"("b":{"dtype":"BOOL","shape":[2,1],"data_offsets":[12,14]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  const std::string data("\0\0\0\0\1\0\0\0\2\0\0\0\1\1", 14);
  EXPECT_EQ(saved(small_tensors(), {{"k", "v"}}), file_of(padded, data));
}

TEST(Safetensors, AFileWithoutTensorsIsValid) { EXPECT_EQ(error_of(saved({})), "no error"); }

TEST(Safetensors, EveryTruncationIsAnError) {
  const TemporaryFolder folder;
  const std::string whole = saved(small_tensors());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_NE(error_of(folder, whole.substr(0, length)), "no error") << "after " << length << " bytes";
  }
  EXPECT_NE(error_of(whole + "x"), "no error");
}

TEST(Safetensors, RandomDamageOfTheHeaderNeverCrashes) {
  const std::string whole = saved(small_tensors(), {{"k", "v"}});
  const TemporaryFolder folder;
  Random random(1);
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string bytes = whole;
    const auto flips = 1 + random.below(3);
    for (std::uint64_t flip = 0; flip < flips; ++flip) {
      bytes[random.below(whole.size() - 14)] = static_cast<char>(random.below(256));
    }
    refused += error_of(folder, bytes) == "no error" ? 0 : 1;
  }
  EXPECT_GT(refused, 500);
}

TEST(Safetensors, ErrorNamesTheHeaderFault) {
  const std::string offsets = R"("data_offsets":[0,4])";
  const auto one = [&](const std::string& entry) {
    return error_of(file_of("{\"t\":" + entry + "}", "1234"));
  };
  EXPECT_EQ(one(R"({"dtype":"F32","shape":[1],)" + offsets + "}"), "no error");
  EXPECT_THAT(one(R"({"dtype":"F99","shape":[1],)" + offsets + "}"),
              AllOf(HasSubstr("'t'"), HasSubstr("F99")));
  EXPECT_THAT(one(R"({"dtype":3,"shape":[1],)" + offsets + "}"), HasSubstr("unknown dtype"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[2],)" + offsets + "}"), HasSubstr("needs 8 bytes"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[-1],)" + offsets + "}"), HasSubstr("not a count"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[1.5],)" + offsets + "}"), HasSubstr("not a count"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":7,)" + offsets + "}"), HasSubstr("shape"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[1]})"), HasSubstr("data_offsets"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,4]})"), HasSubstr("two numbers"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})"), HasSubstr("4 to 0"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), HasSubstr("truncated"));
  EXPECT_THAT(one("7"), HasSubstr("not a JSON object"));
  EXPECT_THAT(error_of(file_of("{]", "")), HasSubstr("not JSON"));
  EXPECT_THAT(error_of(file_of("[1]", "")), HasSubstr("begin with '{'"));
  EXPECT_THAT(error_of(file_of("", "")), HasSubstr("begin with '{'"));
  EXPECT_THAT(error_of(file_of(R"({"__metadata__":{"k":1}})", "")), HasSubstr("'k'"));
  EXPECT_THAT(error_of("short"), HasSubstr("5 bytes"));
}

TEST(Safetensors, ASizeThatOverflowsIsAnError) {
  EXPECT_THAT(
      error_of(file_of(R"({"t":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", "")),
      HasSubstr("too large"));
  EXPECT_THAT(
      error_of(file_of(
          R"({"t":{"dtype":"F32","shape":[0,4611686018427387904,4611686018427387904],"data_offsets":[0,0]}})",
          "")),
      HasSubstr("too large"))
      << "no tensor has such strides, empty or not";
  EXPECT_THAT(error_of(file_of(R"({"t":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})",
                               "1234")),
              HasSubstr("not a count"));
  EXPECT_THAT(error_of(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10)),
              HasSubstr("announces a header"));
}

TEST(Safetensors, OverlapsGapsAndDoubleNamesAreErrors) {
  const auto two = [](const std::string& first, const std::string& second, const std::string& data) {
    return error_of(file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)" + first +
                                R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + second + "}}",
                            data));
  };
  EXPECT_EQ(two("[2,4]", "[0,2]", "1234"), "no error");
  EXPECT_THAT(two("[0,2]", "[1,3]", "123"), HasSubstr("overlaps"));
  EXPECT_THAT(two("[0,2]", "[3,5]", "12345"), HasSubstr("gap"));
  EXPECT_THAT(two("[0,2]", "[2,4]", "12345"), HasSubstr("4 of 5"));
  const std::string entry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_THAT(error_of(file_of("{\"a\":" + entry + ",\"a\":" + entry + "}", "")), HasSubstr("twice"));
}

TEST(Safetensors, BoolBeyondZeroAndOneIsError) {
  EXPECT_THAT(error_of(file_of(R"({"t":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", "\x01\x02")),
              HasSubstr("element 1 of the bool tensor 't' is 2"));
}

TEST(Safetensors, HostileNestingDepthIsError) {
  EXPECT_THAT(error_of(file_of("{\"a\":" + std::string(100000, '['), "")), HasSubstr("levels deep"));
}

TEST(Safetensors, AFailedWriteLeavesTheOldFile) {
  const TemporaryFolder folder;
  save_safetensors(folder / "file", small_tensors());
  const std::string before = read_file(folder / "file");
  EXPECT_THROW(save_safetensors(folder / "file", {{"__metadata__", at::ones({1})}}), InvalidArgument);
  EXPECT_THROW(save_safetensors(folder / "file", {{"complex", at::ones({1}, at::kComplexDouble)}}),
               InvalidArgument);
  EXPECT_THROW(save_safetensors(folder / "file", {{"\xff", at::ones({1})}}), InvalidArgument);
  EXPECT_THROW(save_safetensors(folder / "none" / "file", small_tensors()), DataError);
  EXPECT_EQ(read_file(folder / "file"), before);
  EXPECT_THROW(load_safetensors(folder / "none"), DataError);
  EXPECT_THROW(load_safetensors(folder.path()), DataError);
}

TEST(Xxh3Of, IsEqualExactlyWhenTheTensorsAre) {
  const std::string whole = xxh3_of({{"a", at::ones({2, 3})}});
  EXPECT_EQ(whole.size(), 16U);
  EXPECT_EQ(xxh3_of({{"a", at::ones({3, 2}).t()}}), whole);
  EXPECT_NE(xxh3_of({{"b", at::ones({2, 3})}}), whole);
  EXPECT_NE(xxh3_of({{"a", at::ones({3, 2})}}), whole);
  EXPECT_NE(xxh3_of({{"a", at::ones({2, 3}, at::kInt)}}), whole);
  EXPECT_NE(xxh3_of({{"a", at::full({2, 3}, 2.0)}}), whole);
  EXPECT_NE(xxh3_of({{"a", at::ones({2, 3})}, {"b", at::ones({0})}}), whole);
}

}  // namespace
}  // namespace trireme::checkpoint
