#include "trireme/checkpoint/weights_file.h"

#include <ATen/core/Dict.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <fstream>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/safetensors.h"

namespace trireme::checkpoint {
namespace {

using test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;

class WeightsFile : public testing::Test {
 protected:
  void write(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }

  void save(const c10::IValue& value) const {
    const std::vector<char> bytes = torch::jit::pickle_save(value);
    write({bytes.begin(), bytes.end()});
  }

  std::string error() const {
    try {
      load_weights_file(path_);
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr(path_.string()));
      return error.what();
    }
    return "no error";
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "weights";
};

c10::impl::GenericDict dict_of(const std::vector<std::pair<c10::IValue, c10::IValue>>& items) {
  c10::impl::GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
  for (const auto& [key, value] : items) dict.insert(key, value);
  return dict;
}

TEST_F(WeightsFile, IsADictOfTensorsOrSafetensors) {
  const TensorMap tensors = {{"a", at::arange(6, at::kFloat).reshape({2, 3}).t()},
                             {"b", at::ones({3}, at::kBFloat16)}};
  save(dict_of({{"a", tensors.at("a")}, {"b", tensors.at("b")}}));
  EXPECT_EQ(xxh3_of(load_weights_file(path_).tensors), xxh3_of(tensors));
  save_safetensors(path_, tensors, {{"k", "v"}});
  EXPECT_EQ(xxh3_of(load_weights_file(path_).tensors), xxh3_of(tensors));
  EXPECT_EQ(load_weights_file(path_).metadata.at("k"), "v");
}

TEST_F(WeightsFile, ErrorNamesTheUnexpectedContent) {
  const auto says_what_was_expected = HasSubstr("expected a dict of name -> tensor");
  save(at::ones({1}));
  EXPECT_THAT(error(), AllOf(HasSubstr("found a tensor"), says_what_was_expected));
  save(dict_of({{"epoch", std::int64_t{3}}}));
  EXPECT_THAT(error(), AllOf(HasSubstr("found an int under 'epoch'"), says_what_was_expected));
  save(dict_of({{std::int64_t{3}, at::ones({1})}}));
  EXPECT_THAT(error(), AllOf(HasSubstr("found an int as a key"), says_what_was_expected));
  save(dict_of({{"z", at::ones({1}, at::kComplexDouble)}}));
  EXPECT_THAT(error(), AllOf(HasSubstr("'z'"), HasSubstr("ComplexDouble"), says_what_was_expected));
  write("PK\x03\x04 no archive");
  EXPECT_THAT(error(), AllOf(HasSubstr("cannot read the archive"), says_what_was_expected));
  write("\x80\x02}q.");
  EXPECT_THAT(error(), AllOf(HasSubstr("found a bare pickle"), says_what_was_expected));
  write("some text, or an image");
  EXPECT_THAT(error(), HasSubstr("not a valid safetensors file"));
  std::filesystem::remove(path_);
  EXPECT_THAT(error(), HasSubstr("No such file"));
  std::filesystem::create_directory(path_);
  EXPECT_THAT(error(), HasSubstr("directory"));
}

// The first byte of a safetensors file is the lowest byte of the header's length, so it may have any value.
TEST_F(WeightsFile, HeaderOfAnyLengthIsNoPickle) {
  for (std::size_t length = 1; length <= 256; ++length) {
    save_safetensors(path_, {{std::string(length, 'n'), at::ones({1})}});
    EXPECT_EQ(error(), "no error") << length;
  }
}

TEST_F(WeightsFile, ATruncatedArchiveIsAnError) {
  const std::vector<char> whole = torch::jit::pickle_save(dict_of({{"a", at::ones({100})}}));
  for (std::size_t length = 0; length < whole.size(); length += 97) {
    write({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)});
    EXPECT_NE(error(), "no error") << length;
  }
}

}  // namespace
}  // namespace trireme::checkpoint
