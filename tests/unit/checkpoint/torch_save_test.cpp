// Hand-made files of torch.save with false contents. None is read beyond its records, and none takes
// unlimited memory or stack.

#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temporary_folder.h"
#include "tests/support/zip_archive.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/weights_file.h"

namespace trireme::checkpoint {
namespace {

using test::number_bytes;
using test::ZipEntry;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

std::string pickled(std::int64_t number) {
  return "\x8a\x08" + number_bytes(static_cast<std::uint64_t>(number), 8);
}
std::string pickled(const std::string& words) { return "X" + number_bytes(words.size(), 4) + words; }
std::string pickled(const std::vector<std::int64_t>& numbers) {
  std::string bytes = "(";
  for (const std::int64_t number : numbers) bytes += pickled(number);
  return bytes + "t";
}

/// The description of one tensor in a file.
struct SavedTensor {
  std::string name = "w";
  std::int64_t offset = 0;
  std::vector<std::int64_t> sizes = {2, 3}, strides = {3, 1};
  std::int64_t elements = 6;  ///< of its storage
  std::string type = "FloatStorage", key = "0";
  bool is_parameter = false;
};

std::string pickled(const SavedTensor& tensor) {
  std::string bytes = "ctorch._utils\n_rebuild_tensor_v2\n((" + pickled("storage") + "ctorch\n" +
                      tensor.type + "\n" + pickled(tensor.key) + pickled("cpu") + pickled(tensor.elements) +
                      "tQ" + pickled(tensor.offset) + pickled(tensor.sizes) + pickled(tensor.strides) +
                      "\x89" + "ccollections\nOrderedDict\n)RtR";
  if (tensor.is_parameter)
    bytes = "ctorch._utils\n_rebuild_parameter\n(" + bytes + "\x88" + "ccollections\nOrderedDict\n)RtR";
  return bytes;
}

std::string pickled_dict(const std::vector<SavedTensor>& tensors) {
  std::string bytes = "\x80\x02}(";
  for (const SavedTensor& tensor : tensors) bytes += pickled(tensor.name) + pickled(tensor);
  return bytes + "u.";
}

std::string floats(std::int64_t count) {
  const at::Tensor values = at::arange(count, at::kFloat);
  return {static_cast<const char*>(values.const_data_ptr()), values.nbytes()};
}

std::vector<ZipEntry> archive_of(const std::string& pickle, const std::string& storage = floats(6)) {
  return {{.name = "w/data.pkl", .content = pickle},
          {.name = "w/data/0", .content = storage},
          {.name = "w/version", .content = "3\n"}};
}

class SecurityTorchSave : public testing::Test {
 protected:
  TensorMap load(const std::vector<ZipEntry>& entries) const {
    return load_bytes(test::zip_archive(entries));
  }
  TensorMap load_bytes(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary) << bytes;
    return load_weights_file(path_).tensors;
  }

  std::string error_of(const std::vector<ZipEntry>& entries) const {
    return error_of_bytes(test::zip_archive(entries));
  }
  std::string error_of_bytes(const std::string& bytes) const {
    try {
      load_bytes(bytes);
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr(path_.string()));
      EXPECT_LT(std::string(error.what()).size(), 2000U);
      return error.what();
    }
    return "no error";
  }

  test::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "weights.pt";
};

TEST_F(SecurityTorchSave, TensorsWithinTheirStorageAreRead) {
  const TensorMap read =
      load(archive_of(pickled_dict({{.name = "whole"},
                                    {.name = "turned", .sizes = {3, 2}, .strides = {1, 3}},
                                    {.name = "part", .offset = 4, .sizes = {2}, .strides = {1}},
                                    {.name = "none", .offset = 6, .sizes = {0, 7}, .strides = {7, 1}},
                                    {.name = "repeated", .sizes = {4, 6}, .strides = {0, 1}},
                                    {.name = "scalar", .offset = 5, .sizes = {}, .strides = {}},
                                    {.name = "parameter", .is_parameter = true}})));
  const at::Tensor six = at::arange(6, at::kFloat);
  EXPECT_TRUE(read.at("whole").equal(six.reshape({2, 3})));
  EXPECT_TRUE(read.at("turned").equal(six.reshape({2, 3}).t()));
  EXPECT_TRUE(read.at("part").equal(six.slice(0, 4, 6)));
  EXPECT_EQ(read.at("none").sizes(), (std::vector<std::int64_t>{0, 7}));
  EXPECT_TRUE(read.at("repeated").equal(six.expand({4, 6})));
  EXPECT_EQ(read.at("scalar").item<float>(), 5);
  EXPECT_TRUE(read.at("parameter").equal(six.reshape({2, 3})));
  EXPECT_EQ(read.at("whole").storage().data(), read.at("turned").storage().data());
}

TEST_F(SecurityTorchSave, OrderedDictWithMetadataIsDict) {
  const std::string pickle =
      "\x80\x02"
      "ccollections\nOrderedDict\n)R(" +
      pickled("w") + pickled(SavedTensor()) + "u}" + pickled("_metadata") + "}sb.";
  EXPECT_EQ(load(archive_of(pickle)).count("w"), 1U);
}

TEST_F(SecurityTorchSave, TensorsBeyondTheirStorageAreErrors) {
  const std::vector<SavedTensor> wrong = {
      {.sizes = {10000}, .strides = {1}},
      {.sizes = {7}, .strides = {1}},
      {.offset = 1},
      {.offset = kMost},
      {.offset = -1},
      {.sizes = {-1}, .strides = {1}},
      {.sizes = {2}, .strides = {6}},
      {.sizes = {2}, .strides = {-1}},
      {.sizes = {2}, .strides = {kMost}},
      {.sizes = {kMost, kMost}, .strides = {0, 0}},
      {.sizes = {std::int64_t{1} << 32, std::int64_t{1} << 32}, .strides = {0, 0}},
      {.sizes = {3, 3}, .strides = {kMost / 2 + 1, kMost / 2 + 1}},
      {.sizes = {0, kMost, kMost}, .strides = {0, 0, 0}},
      {.offset = 7, .sizes = {0}, .strides = {1}},
      {.sizes = {}, .strides = {}, .elements = 0},
      {.sizes = {2}, .strides = {}},
      {.sizes = std::vector<std::int64_t>(65, 1), .strides = std::vector<std::int64_t>(65, 1)},
  };
  for (const SavedTensor& tensor : wrong) {
    SCOPED_TRACE(testing::PrintToString(tensor.sizes) + testing::PrintToString(tensor.strides) +
                 std::to_string(tensor.offset));
    EXPECT_THAT(error_of(archive_of(pickled_dict({tensor}))), HasSubstr("the tensor 'w' cannot be read"));
  }
}

TEST_F(SecurityTorchSave, StoragesBeyondTheirRecordAreErrors) {
  for (const std::int64_t elements :
       {std::int64_t{7}, std::int64_t{10000}, std::int64_t{-1}, kMost, kMost / 4 + 2}) {
    const SavedTensor tensor{.sizes = {elements}, .strides = {1}, .elements = elements};
    EXPECT_THAT(error_of(archive_of(pickled_dict({tensor}))), HasSubstr("cannot hold")) << elements;
  }
  EXPECT_THAT(error_of(archive_of(pickled_dict({{.type = "DoubleStorage"}}))), HasSubstr("cannot hold"));
  EXPECT_THAT(error_of(archive_of(pickled_dict({{.type = "OwnStorage"}}))), HasSubstr("unknown type"));
  EXPECT_THAT(
      error_of(archive_of(pickled_dict({{}, {.name = "b", .sizes = {1}, .strides = {1}, .elements = 2}}))),
      HasSubstr("another type or size"));
  EXPECT_THAT(error_of(archive_of(pickled_dict({{}, {.name = "b", .type = "IntStorage"}}))),
              HasSubstr("another type or size"));
  EXPECT_THAT(error_of(archive_of(pickled_dict({{.key = "7"}}))), HasSubstr("no record 'data/7'"));
  EXPECT_THAT(error_of(archive_of(pickled_dict({{.sizes = {6}, .strides = {1}, .type = "BoolStorage"}}),
                                  std::string("\1\0\1\0\2\0", 6))),
              HasSubstr("other than 0 and 1"));
}

TEST_F(SecurityTorchSave, TensorsThatRepeatStorageHaveLimit) {
  EXPECT_THAT(error_of(archive_of(pickled_dict({{.sizes = {std::int64_t{1} << 40}, .strides = {0}}}))),
              HasSubstr("have more than"));
  std::vector<SavedTensor> many;
  for (int i = 0; i < 3000; ++i)
    many.push_back({.name = std::to_string(i), .sizes = {10000}, .strides = {1}, .elements = 10000});
  EXPECT_THAT(error_of(archive_of(pickled_dict(many), floats(10000))), HasSubstr("have more than"));
}

TEST_F(SecurityTorchSave, RecordsThatShareTheirBytesAreErrors) {
  std::vector<SavedTensor> tensors;
  std::vector<ZipEntry> entries = {{.name = "w/data/0", .content = floats(10000)}};
  for (int i = 0; i < 10; ++i) {
    tensors.push_back({.name = std::to_string(i),
                       .sizes = {10000},
                       .strides = {1},
                       .elements = 10000,
                       .key = std::to_string(i)});
    if (i > 0)
      entries.push_back(
          {.name = "w/data/" + std::to_string(i), .content = floats(10000), .shares_first = true});
  }
  entries.push_back({.name = "w/data.pkl", .content = pickled_dict(tensors)});
  EXPECT_THAT(error_of(entries), HasSubstr("overlap"));
}

TEST_F(SecurityTorchSave, ValuesNestToAnyDepthWithoutStack) {
  const std::string start = "\x80\x02";
  const std::string tuples = start + "N" + std::string(2'000'000, '\x85') + ".";
  const std::string lists = start + std::string(500'000, ']') + std::string(499'999, 'a') + ".";
  std::string dicts = start;
  for (int i = 0; i < 300'000; ++i) dicts += "}K\1";
  dicts += "N" + std::string(300'000, 's') + ".";
  std::string calls = start;
  for (int i = 0; i < 200'000; ++i) calls += "ctorch.jit._pickle\nrestore_type_tag\n";
  calls += "N";
  for (int i = 0; i < 200'000; ++i) calls += "\x85R";
  calls += ".";
  EXPECT_THAT(error_of(archive_of(tuples)), HasSubstr("found a tuple"));
  EXPECT_THAT(error_of(archive_of(lists)), HasSubstr("found a list"));
  EXPECT_THAT(error_of(archive_of(dicts)), HasSubstr("found an int as a key"));
  EXPECT_THAT(error_of(archive_of(calls)), HasSubstr("found None"));
  EXPECT_THAT(error_of(archive_of(start + std::string("]q\0h\0a.", 7))), HasSubstr("found a list"))
      << "in itself";
  EXPECT_THAT(error_of(archive_of(start + std::string(3'000'000, ')') + ".")),
              HasSubstr("more than 2500000 values"));
  EXPECT_THAT(error_of(archive_of(start + "N" + std::string(3'000'000, '2') + ".")),
              HasSubstr("more than 2500000 values"));
  EXPECT_THAT(error_of(archive_of(start + std::string(3'000'000, '(') + ".")), HasSubstr("nests too deeply"));
}

TEST_F(SecurityTorchSave, DamagedPicklesAreErrors) {
  const std::string whole = pickled_dict({{}});
  for (std::size_t size = 0; size + 1 < whole.size(); ++size)
    EXPECT_NE(error_of(archive_of(whole.substr(0, size))), "no error") << size;
  for (const std::string bad : {"0.",
                                "t.",
                                "N.t",
                                "\x87.",
                                "h\5.",
                                "j\xff\xff\xff\xff.",
                                "Nr\xff\xff\xff\xff.",
                                "Na.",
                                "]NNs.",
                                "NR.",
                                "NNR.",
                                "Q.",
                                "(NQ.",
                                "K\1K\1\x93.",
                                "X\xff\xff\xff\xff.",
                                "\x8d\xff\xff\xff\xff\xff\xff\xff\xff.",
                                "cos\nsystem\nNR.",
                                "cos\nsystem\n)\x81.",
                                "cos\nsystem\n)RNb.",
                                "i.",
                                "}(Nu.",
                                "\x8a\x09.",
                                "}",
                                "."}) {
    EXPECT_NE(error_of(archive_of("\x80\x02" + bad)), "no error") << bad;
  }
}

TEST_F(SecurityTorchSave, CodeOfFileIsNamedNotRun) {
  const std::string name =
      std::string("\x80\x02}") + pickled("w") + "cos\nsystem\n" + pickled("touch ran") + "\x85Rs.";
  EXPECT_THAT(error_of(archive_of(name)), HasSubstr("found a call of os.system under 'w'"));
}

TEST_F(SecurityTorchSave, NamesAreEscapedAndCutShort) {
  const SavedTensor bad{.name = "a\x1b[31m\n" + std::string(5000, 'b'), .offset = 9};
  const std::string error = error_of(archive_of(pickled_dict({bad})));
  EXPECT_THAT(error, AllOf(HasSubstr("'a\\x1b[31m\\nbbb"), HasSubstr("bytes)'"), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(error_of(archive_of("\x80\x02"
                                  "cmod\x07ule\nname\n.")),
              HasSubstr("found mod\\x07ule.name"));
}

TEST_F(SecurityTorchSave, DamagedArchivesAreErrors) {
  const std::string pickle = pickled_dict({{}});
  std::vector<ZipEntry> compressed = archive_of(pickle);
  compressed[0].method = 8;
  EXPECT_THAT(error_of(compressed), HasSubstr("is compressed"));
  std::vector<ZipEntry> beyond = archive_of(pickle);
  beyond[1].claimed_bytes = std::int64_t{1} << 31;
  EXPECT_THAT(error_of(beyond), HasSubstr("beyond the end of the file"));
  std::vector<ZipEntry> twice = archive_of(pickle);
  twice.push_back(twice[1]);
  EXPECT_THAT(error_of(twice), HasSubstr("two records of one name"));
  std::vector<ZipEntry> big_endian = archive_of(pickle);
  big_endian.push_back({.name = "w/byteorder", .content = "big"});
  EXPECT_THAT(error_of(big_endian), HasSubstr("byte order 'big'"));
  EXPECT_THAT(error_of({{.name = "w/version", .content = "3\n"}}), HasSubstr("no record 'data.pkl'"));
  EXPECT_THAT(error_of(archive_of(pickled_dict({{}, {}}))), HasSubstr("found the key 'w' twice"));
}

// The format of PyTorch before 1.6: a pickle of a number, one of the version, and so on.
TEST_F(SecurityTorchSave, RejectsFormatBeforeArchivesUnread) {
  const std::string magic =
      "\x80\x02\x8a\x0al\xfc\x9c"
      "F\xf9 j\xa8P\x19.";
  EXPECT_THAT(error_of_bytes(magic + "\x80\x02M\xe9\x03."), HasSubstr("found a bare pickle"));
  EXPECT_THAT(error_of_bytes("\x80\x02" + std::string(2'000'000, '(')), HasSubstr("found a bare pickle"));
}

}  // namespace
}  // namespace trireme::checkpoint
