// The rate of log lines about rejected connections. The test sets the time.

#include "trireme/wire/internal/complaints.h"

#include <gtest/gtest.h>

#include "trireme/base/text.h"

namespace trireme::wire {
namespace {

/// The lines that are written for this number of rejections at that time.
std::vector<std::string> written(Complaints& complaints, int rejections, double now_s) {
  std::vector<std::string> lines;
  for (int i = 0; i < rejections; ++i) {
    if (const auto line = complaints.add(text("line ", i), text("10.0.0.1:", i), now_s))
      lines.push_back(*line);
  }
  return lines;
}

TEST(Complaints, FirstAreWrittenOthersCountedPerMinute) {
  Complaints complaints("the store: ");
  const auto first = written(complaints, 422, 1000);
  ASSERT_EQ(first.size(), 10u);
  EXPECT_EQ(first.back(), "line 9");
  EXPECT_EQ(complaints.due_s(), 1060);
  EXPECT_EQ(complaints.take_count(1059.9), std::nullopt);
  EXPECT_EQ(complaints.take_count(1060),
            "the store: 412 more connections were rejected in the last minute, last from 10.0.0.1:421");
  EXPECT_EQ(complaints.due_s(), std::nullopt);
  EXPECT_EQ(complaints.take_count(2000), std::nullopt);
}

TEST(Complaints, LongFloodIsOneLinePerMinute) {
  Complaints complaints("");
  int lines = 0;
  for (int second = 0; second < 4 * 3600; ++second) {
    lines += static_cast<int>(written(complaints, 5, second + 1e6).size());
    if (complaints.take_count(second + 1e6)) ++lines;
  }
  EXPECT_LE(lines, 10 + 4 * 60);
  EXPECT_GE(lines, 4 * 58);
}

TEST(Complaints, ComplaintAfterFloodIsWrittenAgain) {
  Complaints complaints("");
  written(complaints, 100, 1000);
  EXPECT_TRUE(complaints.take_count(1060));
  EXPECT_EQ(written(complaints, 1, 1070).size(), 0u) << "this minute has had its line";
  EXPECT_EQ(complaints.take_count(1130),
            "1 more connection was rejected in the last minute, last from 10.0.0.1:0");
  EXPECT_EQ(written(complaints, 1, 1190).size(), 1u);
}

TEST(Complaints, TheRestIsToldAtTheEnd) {
  Complaints complaints("");
  EXPECT_EQ(complaints.take_rest(), std::nullopt);
  written(complaints, 12, 1000);
  EXPECT_EQ(complaints.take_rest(), "2 more connections were rejected, last from 10.0.0.1:11");
  EXPECT_EQ(complaints.take_rest(), std::nullopt);
}

TEST(Complaints, AnotherTimeIsNamed) {
  Complaints complaints("", 5);
  written(complaints, 11, 1000);
  EXPECT_EQ(complaints.take_count(1005),
            "1 more connection was rejected in the last 5.0 s, last from 10.0.0.1:10");
}

}  // namespace
}  // namespace trireme::wire
