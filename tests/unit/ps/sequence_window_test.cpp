#include "trireme/ps/internal/sequence_window.h"

#include <gtest/gtest.h>

#include <set>

#include "trireme/base/random.h"
#include "trireme/wire/fields.h"

namespace trireme::ps {
namespace {

TEST(SequenceWindow, TakesEachNumberOnceInAnyOrder) {
  Random random(7);
  SequenceWindow window;
  std::set<Sequence> taken;
  for (int round = 0; round < 20000; ++round) {
    const Sequence sequence = 1 + window.contiguous() + random.below(SequenceWindow::kReach + 4);
    ASSERT_EQ(window.too_far(sequence), sequence > window.contiguous() + SequenceWindow::kReach);
    if (window.too_far(sequence)) continue;
    ASSERT_EQ(window.contains(sequence), taken.contains(sequence)) << sequence;
    if (!window.contains(sequence)) window.take(sequence);
    taken.insert(sequence);
    if (round % 3 == 0 && !window.contains(window.contiguous() + 1)) {
      taken.insert(window.contiguous() + 1);
      window.take(window.contiguous() + 1);
    }
    ASSERT_TRUE(window.contains(window.contiguous()) || window.contiguous() == 0);
    ASSERT_FALSE(window.contains(window.contiguous() + 1));
    ASSERT_FALSE(taken.contains(window.contiguous() + 1));
  }
  EXPECT_GT(window.contiguous(), 1000U);
  const auto again = wire::decode<SequenceWindow>(wire::encode(window));
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(*again, window);
}

}  // namespace
}  // namespace trireme::ps
