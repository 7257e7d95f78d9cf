#include "trireme/base/printable.h"

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/run_main.h"
#include "trireme/base/text.h"

namespace trireme {
namespace {

TEST(SecurityPrintable, KeepsWordsOfAllLanguages) {
  EXPECT_EQ(printable("layers.0.weight"), "layers.0.weight");
  EXPECT_EQ(printable("\u00e9t\u00e9 \u6f22\u5b57 \U0001F6F6"), "\u00e9t\u00e9 \u6f22\u5b57 \U0001F6F6");
  EXPECT_EQ(printable(""), "");
}

TEST(SecurityPrintable, EscapesControlCharacters) {
  EXPECT_EQ(printable("a\x1b[31mb\x07"), "a\\x1b[31mb\\x07");
  EXPECT_EQ(printable("one\ntwo\r\t"), "one\\ntwo\\r\\t");
  EXPECT_EQ(printable(std::string_view("\0\x7f", 2)), "\\x00\\x7f");
  EXPECT_EQ(printable("\u009b31m"), "\\u009b31m") << "the one-character form of ESC [";
  EXPECT_EQ(printable("a\\n"), "a\\\\n") << "no text looks like an escape";
}

TEST(SecurityPrintable, EscapesCharactersThatReorderOrBreakLines) {
  EXPECT_EQ(printable("a\u202eb\u2066c\u2028d\u200be\ufeff"), "a\\u202eb\\u2066c\\u2028d\\u200be\\ufeff");
  EXPECT_EQ(printable("\U000E0041"), "\\U000e0041");
}

TEST(SecurityPrintable, EscapesBytesThatAreNoUtf8) {
  EXPECT_EQ(printable("\x9b\xff"), "\\x9b\\xff");
  EXPECT_EQ(printable("\xc0\x9b"), "\\xc0\\x9b") << "overlong";
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half of a surrogate pair";
  EXPECT_EQ(printable("\xe6\xbc"), "\\xe6\\xbc") << "cut short";
}

TEST(SecurityPrintable, IsOfBoundedLength) {
  EXPECT_EQ(printable(std::string(80, 'x')), std::string(80, 'x'));
  EXPECT_EQ(printable(std::string(1000, 'x')), std::string(80, 'x') + "... (1000 bytes)");
  EXPECT_EQ(printable(std::string(1000, 'x'), kWhole), std::string(1000, 'x'));
  EXPECT_EQ(printable("\u6f22\u5b57", 1), "\u6f22... (6 bytes)") << "cut between characters";
}

TEST(SecurityPrintable, MessagesKeepLinesAndHaveBoundedLength) {
  EXPECT_EQ(printable_message("a\\b\n\tc\x1b[2J\r"), "a\\b\n\tc\\x1b[2J\\r");
  EXPECT_EQ(printable_message("abcdef", 3), "abc... (6 bytes)");
}

TEST(SecurityPrintable, EscapesErrorsOfProgramsOnTerminals) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_main([] { throw DataError("bad name '\x1b]0;title\x07' " + std::string(1 << 20, ',')); }),
            kExitData);
  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_NE(printed.find("'\\x1b]0;title\\x07'"), std::string::npos) << printed.substr(0, 200);
  EXPECT_LT(printed.size(), 20000U);
}

TEST(SecurityPrintable, SuggestionsListAFewKnownWords) {
  const std::vector<std::string> many(100000, "name\x1b[1m" + std::string(200, 'n'));
  const std::string list = suggest("z", many);
  EXPECT_LT(list.size(), 10000U);
  EXPECT_EQ(list.find('\x1b'), std::string::npos);
  EXPECT_NE(list.find("of 100000"), std::string::npos) << list;
}

}  // namespace
}  // namespace trireme
