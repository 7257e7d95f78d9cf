#include "trireme/data/text_dataset.h"

#include <gmock/gmock.h>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"

namespace trireme::data {
namespace {

std::vector<std::int64_t> numbers(const at::Tensor& tensor) {
  return {tensor.data_ptr<std::int64_t>(), tensor.data_ptr<std::int64_t>() + tensor.numel()};
}

class Text : public testing::Test {
 protected:
  std::shared_ptr<const EncodedText> encode(const std::string& content) const {
    write_file_atomic(path_, content);
    return std::make_shared<const EncodedText>(path_);
  }

  test::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "text.txt";
};

TEST_F(Text, NumbersCharactersByTheirBytes) {
  const auto text = encode("cab\nb");
  EXPECT_EQ(text->vocabulary(), "\nabc");
  EXPECT_THAT(std::vector<int>(text->codes(), text->codes() + text->size()),
              testing::ElementsAre(3, 1, 2, 0, 2));
}

TEST_F(Text, TargetsAreBlockShiftedByOne) {
  const TextDataset dataset(encode("abcdefg"), {.begin = 1, .end = 7, .block = 3});
  ASSERT_EQ(dataset.size(), 3);
  EXPECT_THAT(numbers(dataset.get(2).input), testing::ElementsAre(3, 4, 5));
  EXPECT_THAT(numbers(dataset.get(2).target), testing::ElementsAre(4, 5, 6));
  EXPECT_THROW(dataset.get(3), InvalidArgument);
}

TEST_F(Text, StridesPredictEveryCharacterOnce) {
  const TextDataset dataset(encode("abcdefgh"), {.begin = 0, .end = 8, .block = 3, .stride = 3});
  ASSERT_EQ(dataset.size(), 2) << "the last character has no whole block";
  EXPECT_THAT(numbers(dataset.get(0).target), testing::ElementsAre(1, 2, 3));
  EXPECT_THAT(numbers(dataset.get(1).target), testing::ElementsAre(4, 5, 6));
}

TEST_F(Text, ABatchIsItsSamplesStacked) {
  const TextDataset dataset(encode("the quick brown fox"), {.begin = 0, .end = 19, .block = 4});
  const std::vector<std::int64_t> indices = {7, 0, 7};
  const Example batch = dataset.get_batch(indices);
  for (std::size_t row = 0; row < indices.size(); ++row) {
    const Example one = dataset.get(indices[row]);
    EXPECT_TRUE((*batch.input)[static_cast<std::int64_t>(row)].equal(one.input));
    EXPECT_TRUE((*batch.target)[static_cast<std::int64_t>(row)].equal(one.target));
  }
}

TEST_F(Text, SourceKeepsLastTenthForValidation) {
  write_file_atomic(path_, std::string(90, 'a') + std::string(10, 'b'));
  const DataSource source = open_data({.name = "text", .path = path_.string(), .block = 4});
  EXPECT_EQ(source.num_classes, 2);
  EXPECT_EQ(source.held_out, "validation");
  EXPECT_EQ(source.targets_per_sample, 4);
  EXPECT_EQ(source.train->size(), 86);
  EXPECT_EQ(source.test->size(), 2);
  EXPECT_THAT(numbers(source.test->get(0).input), testing::Each(1));
}

TEST_F(Text, TooShortTextNamesNeededLength) {
  const auto error_of = [&](const std::string& content) {
    write_file_atomic(path_, content);
    try {
      open_data({.name = "text", .path = path_.string(), .block = 64});
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error_of("short"),
              testing::AllOf(testing::HasSubstr("has 5 characters"), testing::HasSubstr("650")));
  EXPECT_THAT(error_of(""), testing::HasSubstr("has 0 characters"));
  EXPECT_EQ(error_of(std::string(650, 'x')), "no error");
  EXPECT_THROW(open_data({.name = "text"}), InvalidArgument) << "no data.path";
  EXPECT_THROW(open_data({.name = "text", .path = "/nowhere/at/all"}), DataError);
}

}  // namespace
}  // namespace trireme::data
