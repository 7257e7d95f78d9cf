#include "trireme/data/sequence_packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::data {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Tokens = std::vector<std::int64_t>;

/// Token j of document i is 1000 i + j + 1.
class Documents : public Dataset {
 public:
  explicit Documents(Tokens lengths) : lengths_(std::move(lengths)) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(lengths_.size()); }
  Example get(std::int64_t index) const override {
    ++num_reads;
    return {torch::arange(lengths_[static_cast<std::size_t>(index)]) + 1000 * index + 1, {}};
  }
  mutable int num_reads = 0;

 private:
  Tokens lengths_;
};

Tokens tokens(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<std::int64_t>(), tensor.const_data_ptr<std::int64_t>() + tensor.numel()};
}

std::shared_ptr<const Dataset> packed(const Tokens& lengths, const PackingOptions& options) {
  return pack_sequences(std::make_shared<Documents>(lengths), options);
}

TEST(SequencePacking, DocumentTakesFirstBlockWithRoom) {
  const auto blocks = packed({5, 4, 3, 1}, {.length = 8});
  ASSERT_EQ(blocks->size(), 2);
  const Example first = blocks->get(0), second = blocks->get(1);
  EXPECT_EQ(tokens(first.input["tokens"]), (Tokens{1, 2, 3, 4, 5, 2001, 2002, 2003}));
  EXPECT_EQ(tokens(first.input["documents"]), (Tokens{1, 1, 1, 1, 1, 2, 2, 2}));
  EXPECT_EQ(tokens(first.input["positions"]), (Tokens{0, 1, 2, 3, 4, 0, 1, 2}));
  EXPECT_EQ(tokens(first.target), (Tokens{2, 3, 4, 5, -100, 2002, 2003, -100}));
  EXPECT_EQ(tokens(second.input["tokens"]), (Tokens{1001, 1002, 1003, 1004, 3001, 0, 0, 0}));
  EXPECT_EQ(tokens(second.input["documents"]), (Tokens{1, 1, 1, 1, 2, 0, 0, 0}));
  EXPECT_EQ(tokens(second.target), (Tokens{1002, 1003, 1004, -100, -100, -100, -100, -100}));
  EXPECT_THROW(blocks->get(2), InvalidArgument);
}

TEST(SequencePacking, LongDocumentIsCutAndContinued) {
  const auto blocks = packed({0, 10}, {.length = 4, .padding = 7, .ignored = -1});
  ASSERT_EQ(blocks->size(), 3);
  EXPECT_EQ(tokens(blocks->get(0).target), (Tokens{1002, 1003, 1004, 1005}));
  EXPECT_EQ(tokens(blocks->get(2).input["tokens"]), (Tokens{1009, 1010, 7, 7}));
  EXPECT_EQ(tokens(blocks->get(2).input["positions"]), (Tokens{8, 9, 0, 0}));
  EXPECT_EQ(tokens(blocks->get(2).target), (Tokens{1010, -1, -1, -1}));
}

TEST(SequencePacking, ConcatenationFillsEveryBlock) {
  const auto blocks = packed({3, 4, 2, 2}, {.length = 5, .packing = Packing::kConcatenate});
  ASSERT_EQ(blocks->size(), 2);
  EXPECT_EQ(tokens(blocks->get(0).input["tokens"]), (Tokens{1, 2, 3, 1001, 1002}));
  EXPECT_EQ(tokens(blocks->get(0).target), (Tokens{2, 3, -100, 1002, 1003}));
  EXPECT_EQ(tokens(blocks->get(1).input["tokens"]), (Tokens{1003, 1004, 2001, 2002, 3001}));
  EXPECT_EQ(tokens(blocks->get(1).input["positions"]), (Tokens{2, 3, 0, 1, 0}));
  EXPECT_EQ(tokens(blocks->get(1).target), (Tokens{1004, -100, 2002, -100, 3002}));
}

/// The definition: each document tries all blocks from the first on.
TEST(SequencePacking, TokensAreInOneFirstFitBlock) {
  Random random(7);
  Tokens lengths;
  for (int i = 0; i < 300; ++i) lengths.push_back(static_cast<std::int64_t>(random.below(33)));
  const auto blocks = packed(lengths, {.length = 32});
  std::vector<Tokens> expected;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] == 0) continue;
    std::size_t block = 0;
    while (block < expected.size() && static_cast<std::int64_t>(expected[block].size()) + lengths[i] > 32)
      ++block;
    if (block == expected.size()) expected.emplace_back();
    for (std::int64_t j = 0; j < lengths[i]; ++j)
      expected[block].push_back(1000 * static_cast<std::int64_t>(i) + j + 1);
  }
  ASSERT_EQ(blocks->size(), static_cast<std::int64_t>(expected.size()));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i].resize(32, 0);
    EXPECT_EQ(tokens(blocks->get(static_cast<std::int64_t>(i)).input["tokens"]), expected[i]) << i;
  }
}

TEST(SequencePacking, KnownLengthsSpareReadingAndAreChecked) {
  const auto documents = std::make_shared<Documents>(Tokens{3, 4});
  const auto blocks = pack_sequences(documents, {.length = 4, .lengths = {3, 3}});
  EXPECT_EQ(documents->num_reads, 0);
  blocks->get(0);
  EXPECT_EQ(documents->num_reads, 1);
  EXPECT_THAT([&] { blocks->get(1); },
              ThrowsMessage<DataError>(HasSubstr("document 1 has 4 tokens, and had 3")));
  EXPECT_THROW(pack_sequences(documents, {.length = 4, .lengths = {3}}), InvalidArgument);
  EXPECT_THROW(pack_sequences(documents, {.length = 4, .lengths = {3, -1}}), InvalidArgument);
}

TEST(SequencePacking, RejectsInputWithoutAnyBlock) {
  EXPECT_THAT([] { packed({0, 0}, {.length = 4}); }, ThrowsMessage<InvalidArgument>(HasSubstr("no block")));
  EXPECT_THROW(packed({3}, {.length = 4, .packing = Packing::kConcatenate}), InvalidArgument);
  EXPECT_THROW(packed({3}, {.length = 0}), InvalidArgument);
}

class Pictures : public Documents {
 public:
  using Documents::Documents;
  Example get(std::int64_t) const override { return {torch::zeros({2, 2}), {}}; }
};

TEST(SequencePacking, SamplesThatAreNoTokensAreNamed) {
  EXPECT_THAT([] { pack_sequences(std::make_shared<Pictures>(Tokens{1}), {}); },
              ThrowsMessage<DataError>(HasSubstr("document 0 has")));
}

}  // namespace
}  // namespace trireme::data
