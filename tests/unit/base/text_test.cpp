#include "trireme/base/text.h"

#include <gtest/gtest.h>

#include <iomanip>

namespace trireme {
namespace {

const std::vector<std::string> kKeys = {"train.epochs", "train.max_steps", "optimizer.lr"};

TEST(Text, JoinsAnythingThatStreams) {
  EXPECT_EQ(text("rank ", 3, " of ", 4, ", ", 0.5), "rank 3 of 4, 0.5");
}

TEST(Text, TakesManipulatorsArraysAndCustomStreamOperators) {
  char words[8] = "oars";
  const std::string row = "row";
  EXPECT_EQ(text(std::hex, 255, ' ', std::dec, 255, ' ', words, ' ', row, ' ', std::string_view(row)),
            "ff 255 oars row row");
  EXPECT_EQ(text(std::setprecision(2), 0.125, true), "0.121") << "what was set holds for what follows";
  EXPECT_EQ(text(), "");
}

TEST(Text, SplitKeepsEmptyParts) {
  EXPECT_EQ(split("a,,b,", ','), (std::vector<std::string>{"a", "", "b", ""}));
  EXPECT_EQ(split("", ','), (std::vector<std::string>{""}));
}

TEST(Text, TrimRemovesWhiteSpaceFromBothEnds) {
  EXPECT_EQ(trim("  a b\t\r\n"), "a b");
  EXPECT_EQ(trim(" \n"), "");
}

TEST(Text, NearestFindsTheMisspeltWord) {
  EXPECT_EQ(nearest("train.epoch", kKeys), "train.epochs");
  EXPECT_EQ(nearest("optimiser.lr", kKeys), "optimizer.lr");
}

TEST(Text, NearestDiffersByThirdAtMost) {
  const std::vector<std::string> three_longer = {"abcdefghijkl"}, four_longer = {"abcdefghijklm"};
  EXPECT_EQ(nearest("abcdefghi", three_longer), "abcdefghijkl");
  EXPECT_EQ(nearest("abcdefghi", four_longer), "");
  EXPECT_EQ(nearest(std::string(1 << 20, 'a'), three_longer), "");
}

TEST(Text, NearestIsEmptyWhenNothingIsMeant) { EXPECT_EQ(nearest("zzzzzzzz", kKeys), ""); }

TEST(Text, SuggestListsKnownWordsWithoutNearOne) {
  EXPECT_EQ(suggest("train.epoch", kKeys), " (did you mean 'train.epochs'?)");
  EXPECT_EQ(suggest("zzzzzzzz", kKeys), " (known: train.epochs, train.max_steps, optimizer.lr)");
}

TEST(Text, BytesHaveBinaryUnits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.0 KiB");
  EXPECT_EQ(human_bytes(1 << 20), "1.0 MiB");
  EXPECT_EQ(human_bytes(25 << 20), "25.0 MiB");
  EXPECT_EQ(human_bytes(std::uint64_t{3} << 40), "3.0 TiB");
}

TEST(Text, DurationsReadLikeAPersonSaysThem) {
  EXPECT_EQ(human_duration(0.0000125), "12 us");
  EXPECT_EQ(human_duration(0.25), "250 ms");
  EXPECT_EQ(human_duration(59.94), "59.9 s");
  EXPECT_EQ(human_duration(200), "3m 20s");
  EXPECT_EQ(human_duration(3720), "1h 02m");
}

}  // namespace
}  // namespace trireme
