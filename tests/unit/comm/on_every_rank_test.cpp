#include "trireme/comm/on_every_rank.h"

#include <gmock/gmock.h>

#include "trireme/base/error.h"
#include "trireme/comm/context.h"

namespace trireme::comm {
namespace {

TEST(OnEveryRank, ErrorOfOneIsThrownOnAll) {
  run_ranks_as_threads(3, [](Context& context) {
    for (const int failing : {0, 2}) {
      try {
        on_every_rank(context.world(), [&] {
          if (context.rank() == failing) throw DataError(text("disk of rank ", failing));
        });
        ADD_FAILURE() << "no error on rank " << context.rank();
      } catch (const DataError& error) {
        EXPECT_EQ(error.what(), text("disk of rank ", failing));
      }
    }
    on_every_rank(context.world(), [] {});
  });
}

TEST(OnEveryRank, FirstRankErrorOfSeveralIsThrown) {
  run_ranks_as_threads(3, [](Context& context) {
    EXPECT_THROW(on_every_rank(context.world(),
                               [&] {
                                 if (context.rank() == 1) throw DivergedError("first");
                                 if (context.rank() == 2) throw InvalidArgument("second");
                               }),
                 DivergedError);
  });
}

}  // namespace
}  // namespace trireme::comm
