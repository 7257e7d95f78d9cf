#include "trireme/base/crc32c.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

namespace trireme {
namespace {

TEST(Crc32c, IsThatOfRfc3720AppendixB4) {
  std::string rising(32, '\0');
  std::iota(rising.begin(), rising.end(), '\0');
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  EXPECT_EQ(crc32c(rising), 0x46DD794Eu);
  EXPECT_EQ(crc32c(std::string(rising.rbegin(), rising.rend())), 0x113FDB5Cu);
  const unsigned char command[48] = {0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0, 0,
                                     0x14, 0,    0, 0, 0, 0, 4, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18,
                                     0x28, 0,    0, 0, 0, 0, 0, 0, 2, 0, 0, 0,    0, 0, 0, 0};
  EXPECT_EQ(crc32c({reinterpret_cast<const char*>(command), sizeof command}), 0xD9963A56u);
}

TEST(Crc32c, IsEqualByInstructionTableAndPieces) {
  std::string bytes(1000, '\0');
  std::iota(bytes.begin(), bytes.end(), '\3');
  for (std::size_t begin = 0; begin < 9; ++begin) {
    for (std::size_t size = 0; size < 80; ++size) {
      const std::string_view part = std::string_view(bytes).substr(begin, size);
      EXPECT_EQ(crc32c(part), crc32c_by_table(part)) << begin << " " << size;
      EXPECT_EQ(crc32c(part.substr(size / 3), crc32c(part.substr(0, size / 3))), crc32c(part));
    }
  }
}

}  // namespace
}  // namespace trireme
