// Groups carry tensors of a device that their backend does not know: what comes out is what comes out on the
// CPU, and the CPU's tensors travel beside them.
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/support/stand_in_device.h"
#include "trireme/comm/context.h"

namespace trireme::comm {
namespace {

constexpr int kRanks = 3;
constexpr std::int64_t kNumel = 600;

at::Tensor numbers_of(int rank, c10::Device device, std::int64_t numel = kNumel) {
  return at::arange(numel, at::kFloat).mul(0.1 + rank).sin().to(device);
}

using Operation = std::function<at::Tensor(Group&, c10::Device)>;

struct Row {
  const char* name;
  Operation run;
};

const Row kOperations[] = {
    {"AllReduce",
     [](Group& group, c10::Device device) {
       at::Tensor tensor = numbers_of(group.rank(), device);
       group.all_reduce(tensor);
       return tensor;
     }},
    {"ReduceScatter",
     [](Group& group, c10::Device device) {
       at::Tensor part = at::zeros({kNumel / kRanks}, at::device(device));
       group.reduce_scatter(part, numbers_of(group.rank(), device));
       return part;
     }},
    {"AllGather",
     [](Group& group, c10::Device device) {
       at::Tensor all = at::zeros({kNumel * kRanks}, at::device(device));
       group.all_gather(all, numbers_of(group.rank(), device));
       return all;
     }},
    {"Broadcast",
     [](Group& group, c10::Device device) {
       at::Tensor tensor = numbers_of(group.rank(), device);
       group.broadcast(tensor, 1);
       return tensor;
     }},
    {"Reduce",
     [](Group& group, c10::Device device) {
       at::Tensor tensor = numbers_of(group.rank(), device);
       group.reduce(tensor, 2, ReduceOp::kMax);
       return group.rank() == 2 ? tensor : at::Tensor();
     }},
    {"Gather",
     [](Group& group, c10::Device device) {
       at::Tensor all = group.rank() == 1 ? at::zeros({kNumel * kRanks}, at::device(device)) : at::Tensor();
       group.gather(all, numbers_of(group.rank(), device), 1);
       return all;
     }},
    {"Scatter",
     [](Group& group, c10::Device device) {
       at::Tensor part = at::zeros({kNumel / kRanks}, at::device(device));
       group.scatter(part, group.rank() == 0 ? numbers_of(7, device) : at::Tensor(), 0);
       return part;
     }},
    {"AllToAll",
     [](Group& group, c10::Device device) {
       at::Tensor output = at::zeros({kNumel}, at::device(device));
       group.all_to_all(output, numbers_of(group.rank(), device));
       return output;
     }},
    {"AllToAllCoalesced",
     [](Group& group, c10::Device device) {
       std::vector<TensorExchange> pairs;
       for (const at::ScalarType type : {at::kFloat, at::kShort}) {
         const at::Tensor numbers = numbers_of(group.rank(), device).to(type);
         pairs.push_back({.output = at::zeros_like(numbers), .input = numbers});
       }
       group.all_to_all_coalesced(pairs);
       return pairs[0].output.add(pairs[1].output);
     }},
    {"Messages",
     [](Group& group, c10::Device device) {
       at::Tensor got = at::zeros({kNumel}, at::device(device));
       const int next = (group.rank() + 1) % kRanks, before = (group.rank() + kRanks - 1) % kRanks;
       Pending received = group.recv_async(got, before);
       Pending sent = group.send_async(numbers_of(group.rank(), device), next);
       received.wait();
       sent.wait();
       return got;
     }},
};

class DeviceGroups : public testing::TestWithParam<const char*> {};

TEST_P(DeviceGroups, CarryWhatTheCpuCarries) {
  run_ranks_as_threads(kRanks,
                       [](Context& context) {
                         for (const auto& [name, run] : kOperations) {
                           const at::Tensor there = run(context.world(), context.device());
                           const at::Tensor here = run(context.world(), c10::kCPU);
                           ASSERT_EQ(there.defined(), here.defined()) << name;
                           if (!here.defined()) continue;
                           EXPECT_EQ(there.device(), context.device()) << name;
                           EXPECT_TRUE(there.cpu().equal(here)) << name;
                         }
                       },
                       {.backend = GetParam(), .device = test::kStandInDevice, .timeout_s = 30});
}

TEST_P(DeviceGroups, WaitingTwiceBringsAResultOnce) {
  run_ranks_as_threads(kRanks,
                       [](Context& context) {
                         at::Tensor tensor = numbers_of(context.rank(), context.device());
                         Pending pending = context.world().all_reduce_async(tensor);
                         pending.wait();
                         tensor.zero_();
                         pending.wait();
                         EXPECT_EQ(tensor.abs().max().item<float>(), 0);
                       },
                       {.backend = GetParam(), .device = test::kStandInDevice, .timeout_s = 30});
}

INSTANTIATE_TEST_SUITE_P(Over, DeviceGroups, testing::Values("threads", "gloo"),
                         [](const auto& row) { return std::string(row.param); });

}  // namespace
}  // namespace trireme::comm
