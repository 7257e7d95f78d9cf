// Tensors that a group or its backend keeps after an operation.
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <vector>

#include "trireme/comm/context.h"

namespace trireme::comm {
namespace {

constexpr std::int64_t kNumel = 1000;

class KeptTensors : public testing::TestWithParam<std::string> {};

// A tensor may become the output of an autograd function that holds the group.
TEST_P(KeptTensors, ExcludeTensorThatCallerDrops) {
  run_ranks_as_threads(3,
                       [&](Context& context) {
                         Group group = context.world();
                         std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> dropped;
                         const auto make = [&] {
                           at::Tensor tensor = at::ones({kNumel});
                           dropped.emplace_back(tensor.getIntrusivePtr());
                           return tensor;
                         };
                         group.all_reduce(make());
                         group.all_gather(at::empty({kNumel * context.world_size()}), make());
                         group.broadcast(make(), 0);
                         group.reduce(make(), 0);
                         group.reduce_scatter(at::empty({kNumel}), at::ones({kNumel * context.world_size()}));
                         group.all_reduce_async(make()).wait();
                         if (context.world_size() > 1) {
                           const int next = (context.rank() + 1) % context.world_size(),
                                     before =
                                         (context.rank() + context.world_size() - 1) % context.world_size();
                           Pending sent = group.send_async(make(), next);
                           group.recv(make(), before);
                           sent.wait();
                         }
                         for (std::size_t i = 0; i < dropped.size(); ++i)
                           EXPECT_TRUE(dropped[i].expired()) << "tensor " << i;
                       },
                       {.backend = GetParam(), .timeout_s = 20});
}

std::vector<std::string> backends() {
  std::vector<std::string> names;
  for (const auto& info : backend_infos()) {
    if (info.name != "nccl") names.push_back(info.name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(EveryBackend, KeptTensors, testing::ValuesIn(backends()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace trireme::comm
