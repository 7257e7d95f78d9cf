#include "trireme/base/memory_ledger.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

constexpr std::size_t kMib = 1 << 20;

TEST(MemoryLedger, CountsBlocksByTheirLastKind) {
  MemoryLedger ledger;
  const char blocks[2] = {};
  ledger.add(&blocks[0], 3 * kMib);
  ledger.add(&blocks[1], kMib, MemoryKind::kCommunication);
  EXPECT_EQ(ledger.now()[MemoryKind::kActivations], 3 * kMib);
  ledger.name(&blocks[0], MemoryKind::kGradients);
  ledger.name(&ledger, MemoryKind::kWeights);
  EXPECT_EQ(ledger.now()[MemoryKind::kActivations], 0);
  EXPECT_EQ(ledger.now()[MemoryKind::kGradients], 3 * kMib);
  EXPECT_EQ(ledger.now().total(), 4 * kMib);
  ledger.remove(&blocks[0]);
  ledger.remove(&blocks[0]);
  EXPECT_EQ(ledger.now()[MemoryKind::kGradients], 0);
  EXPECT_EQ(ledger.now().total(), kMib);
}

TEST(MemoryLedger, RemembersContentsOfPeak) {
  MemoryLedger ledger;
  const char blocks[3] = {};
  ledger.add(&blocks[0], kMib, MemoryKind::kWeights);
  ledger.add(&blocks[1], 5 * kMib);
  ledger.remove(&blocks[1]);
  ledger.add(&blocks[2], 2 * kMib, MemoryKind::kGradients);
  EXPECT_EQ(ledger.at_peak()[MemoryKind::kActivations], 5 * kMib);
  EXPECT_EQ(ledger.at_peak()[MemoryKind::kGradients], 0);
  EXPECT_EQ(ledger.at_peak().total(), 6 * kMib);
  ledger.reset_peak();
  EXPECT_EQ(ledger.at_peak().total(), 3 * kMib);
  EXPECT_EQ(ledger.at_peak()[MemoryKind::kGradients], 2 * kMib);
}

TEST(MemoryLedger, LeavesSmallBlocksOut) {
  MemoryLedger ledger;
  const char block = 0;
  ledger.add(&block, MemoryLedger::kMinBytes - 1);
  EXPECT_EQ(ledger.now().total(), 0);
  ledger.remove(&block);
  EXPECT_EQ(ledger.now().total(), 0);
}

}  // namespace
}  // namespace trireme
