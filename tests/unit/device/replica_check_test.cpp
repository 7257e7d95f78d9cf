// Digests of tensors on a device take one read for all of them, and a difference is detected.
#include "trireme/parallel/data/replica_check.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <vector>

#include "tests/support/stand_in_device.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using comm::run_ranks_as_threads;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(ReplicaCheckOnADevice, ReadsOneTensorAndFindsAnyChange) {
  constexpr int kRanks = 2;
  const std::int64_t before = test::reads_from_stand_in();
  std::int64_t after_first = 0;
  run_ranks_as_threads(
      kRanks,
      [&](Context& context) {
        optim::NamedTensors tensors;
        for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong, at::kByte})
          tensors.emplace_back(at::toString(type),
                               at::arange(1, 13).view({3, 4}).to(type).t().to(context.device()));
        ReplicaCheck check(context.world(), tensors);
        check.run("step 1");
        context.world().barrier();
        if (context.is_main()) after_first = test::reads_from_stand_in();
        context.world().barrier();
        for (const auto& [name, tensor] : tensors) {
          if (context.is_main()) tensor[2][1].fill_(3);
          EXPECT_THAT([&] { check.run("step 2"); },
                      ThrowsMessage<CommError>(HasSubstr(text("'", name, "'"))));
          if (!context.is_main()) tensor[2][1].fill_(3);
        }
        check.run("step 3");
      },
      {.device = test::kStandInDevice});
  EXPECT_EQ(after_first - before, kRanks);
}

}  // namespace
}  // namespace trireme::parallel
