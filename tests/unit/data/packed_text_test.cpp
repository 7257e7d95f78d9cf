// Packed texts: the tokens of a file, from pages.

#include <gmock/gmock.h>

#include <fstream>

#include "tests/unit/data/packed_samples.h"
#include "trireme/base/files.h"
#include "trireme/data/pack_text.h"
#include "trireme/data/token_dataset.h"

namespace trireme::data {
namespace {

using test::expect_same_samples;
using test::message_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

std::vector<std::int64_t> numbers(const at::Tensor& tensor) {
  const at::Tensor all = tensor.contiguous();
  return {all.const_data_ptr<std::int64_t>(), all.const_data_ptr<std::int64_t>() + all.numel()};
}

class PackedText : public testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& content) const {
    write_file_atomic(folder_ / name, content);
    return folder_ / name;
  }
  /// Enough for several pages in each split.
  static std::string letters(std::size_t count = 700'000) {
    std::mt19937 random(5);
    std::string content;
    for (std::size_t i = 0; i < count; ++i) content += static_cast<char>('a' + random() % 40);
    return content;
  }
  template <class Token>
  static std::string raw(const std::vector<Token>& tokens) {
    return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Token)};
  }
  PackOptions into(std::uint64_t shard_bytes = 1 << 20) const {
    return {.folder = packed_, .shard_bytes = shard_bytes};
  }
  DataOptions reading(std::int64_t block) const {
    return {.name = "packed", .path = packed_.string(), .block = block};
  }
  std::vector<std::int64_t> tokens_of(const std::string& split) const {
    // A sample of all tokens of a split except the last. Its targets are all except the first.
    const std::int64_t size = TokenDataset(packed_, split, {.block = 1}).size();
    const Example all = TokenDataset(packed_, split, {.block = size}).get(0);
    std::vector<std::int64_t> found = numbers(all.input);
    found.push_back(numbers(all.target).back());
    return found;
  }

  test::TemporaryFolder folder_;
  fs::path packed_ = folder_ / "packed";
};

TEST_F(PackedText, CharactersAreTheSamplesOfTheFile) {
  const fs::path path = write("text.txt", letters());
  const PackedSize size = pack_text({.path = path}, into(100'000));
  EXPECT_EQ(size.samples, 700'000);
  EXPECT_GE(size.shards, 8u);
  const DataSource source = open_data({.name = "text", .path = path.string(), .block = 1000});
  const DataSource packed = open_data(reading(1000));
  expect_same_samples(*packed.test, *source.test);
  ASSERT_EQ(packed.train->size(), source.train->size());
  std::mt19937 random(9);
  std::vector<std::int64_t> indices = {0, source.train->size() - 1};
  for (int i = 0; i < 500; ++i) indices.push_back(static_cast<std::int64_t>(random()) % source.train->size());
  for (int again = 0; again < 2; ++again) {
    const Example found = indexed(packed.train)->get_batch(indices),
                  expected = indexed(source.train)->get_batch(indices);
    test::expect_same_bits(found.input, expected.input);
    test::expect_same_bits(found.target, expected.target);
  }
  EXPECT_EQ(packed.num_classes, source.num_classes);
  EXPECT_EQ(packed.input_shape, source.input_shape);
  EXPECT_EQ(packed.targets_per_sample, source.targets_per_sample);
  EXPECT_EQ(packed.held_out, source.held_out);
}

TEST_F(PackedText, JsonDocumentsStayWholeBeforeEndToken) {
  std::string lines;
  for (int i = 0; i < 9; ++i) lines += "{\"id\": 1, \"text\": \"ba\"}\n";
  lines += "\n{\"text\": \"c\\u0041\"}";
  pack_text({.path = write("a.jsonl", lines), .form = TextForm::kJsonLines}, into());
  // A a b c: 0 1 2 3, and 4 after each document.
  EXPECT_THAT(tokens_of("test"), ElementsAre(3, 0, 4));
  std::vector<std::int64_t> expected;
  for (int i = 0; i < 9; ++i) expected.insert(expected.end(), {2, 1, 4});
  EXPECT_EQ(tokens_of("train"), expected);
  EXPECT_EQ(open_data(reading(2)).num_classes, 5);
}

TEST_F(PackedText, InvalidLineIsNamed) {
  const auto error_of = [&](const std::string& line) {
    const fs::path path = write("a.jsonl", "{\"text\": \"fine\"}\n\n" + line + "\n");
    const std::string said =
        message_of([&] { pack_text({.path = path, .form = TextForm::kJsonLines}, into()); });
    EXPECT_THAT(said, HasSubstr("a.jsonl:3:")) << line;
    EXPECT_FALSE(fs::exists(packed_)) << line;
    return said;
  };
  EXPECT_THAT(error_of("{\"text\": 7}"), HasSubstr("'text' is no text"));
  EXPECT_THAT(error_of("{\"body\": \"x\"}"), HasSubstr("there is no 'text'"));
  EXPECT_THAT(error_of("{\"text\": \"x\""), HasSubstr("not JSON"));
  EXPECT_THAT(error_of("[1]"), HasSubstr("no object"));
  EXPECT_THAT(error_of(std::string(100'000, '[')), HasSubstr("levels deep"));
}

TEST_F(PackedText, NumbersArePackedInTheirSmallestSize) {
  std::vector<std::uint16_t> train(70'000), validation = {5, 50256, 7};
  for (std::size_t i = 0; i < train.size(); ++i) train[i] = static_cast<std::uint16_t>(i * 37);
  train[1] = 65535;
  const TextSource two{.path = write("train.bin", raw(train)),
                       .form = TextForm::kU16,
                       .validation = write("val.bin", raw(validation))};
  pack_text(two, into());
  EXPECT_EQ(open_data(reading(2)).num_classes, 65536);
  EXPECT_THAT(tokens_of("test"), ElementsAre(5, 50256, 7));
  EXPECT_EQ(tokens_of("train"), std::vector<std::int64_t>(train.begin(), train.end()));

  const std::vector<std::uint32_t> wide = {1, 70'000, 3, 4'000'000'000, 5, 6, 7, 8, 9, 10, 11};
  PackOptions again = into();
  again.force = true;
  pack_text({.path = write("wide.bin", raw(wide)), .form = TextForm::kU32}, again);
  EXPECT_THAT(tokens_of("train"), ElementsAre(1, 70'000, 3, 4'000'000'000, 5, 6, 7, 8, 9));
  EXPECT_EQ(open_data(reading(1)).num_classes, 4'000'000'001);
  const std::vector<std::uint32_t> narrow(11, 3);
  pack_text({.path = write("narrow.bin", raw(narrow)), .form = TextForm::kU32, .vocabulary = 200}, again);
  EXPECT_EQ(open_data(reading(1)).num_classes, 200);
  EXPECT_EQ(tokens_of("train").size(), 9u);
}

TEST_F(PackedText, RejectsNumbersBeyondVocabularyOrTruncated) {
  const fs::path path = write("a.bin", raw(std::vector<std::uint16_t>{1, 2, 300, 4}));
  EXPECT_THAT(
      message_of([&] { pack_text({.path = path, .form = TextForm::kU16, .vocabulary = 300}, into()); }),
      AllOf(HasSubstr("a.bin"), HasSubstr("token 300")));
  const fs::path odd = write("odd.bin", "abc");
  EXPECT_THAT(message_of([&] { pack_text({.path = odd, .form = TextForm::kU16}, into()); }),
              AllOf(HasSubstr("odd.bin"), HasSubstr("offset 3")));
  EXPECT_THAT(message_of([&] { pack_text({.path = folder_ / "absent.bin"}, into()); }),
              HasSubstr("absent.bin"));
  EXPECT_THAT(message_of([&] { pack_text({.path = folder_.path()}, into()); }), HasSubstr("directory"));
  EXPECT_THAT(message_of([&] { pack_text({.path = write("empty", "")}, into()); }), HasSubstr("0 tokens"));
}

TEST_F(PackedText, TooShortSplitNamesNeedsOfSample) {
  pack_text({.path = write("text.txt", letters(100))}, into());
  EXPECT_THAT(message_of([&] { open_data(reading(10)); }),
              AllOf(HasSubstr("has 10 tokens"), HasSubstr("11")));
  EXPECT_EQ(open_data(reading(9)).test->size(), 1);
  DataOptions augmented = reading(9);
  augmented.augment = {"flip"};
  EXPECT_THAT(message_of<InvalidArgument>([&] { open_data(augmented); }), HasSubstr("data.augment"));
}

}  // namespace
}  // namespace trireme::data
