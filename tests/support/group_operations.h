#pragma once
// Each operation of a group once, on tensors of any device. On all devices the results must equal those on
// CPU tensors.

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "trireme/comm/context.h"

namespace trireme::test {

inline constexpr int kGroupRanks = 3;
inline constexpr std::int64_t kGroupNumel = 600;

inline at::Tensor numbers_of(int rank, c10::Device device, std::int64_t numel = kGroupNumel) {
  return at::arange(numel, at::kFloat).mul(0.1 + rank).sin().to(device);
}

struct GroupOperation {
  const char* name;
  std::function<at::Tensor(comm::Group&, c10::Device)> run;  ///< on one of 3 ranks; undefined: no result here
};

inline const GroupOperation kGroupOperations[] = {
    {"AllReduce",
     [](comm::Group& group, c10::Device device) {
       at::Tensor tensor = numbers_of(group.rank(), device);
       group.all_reduce(tensor);
       return tensor;
     }},
    {"ReduceScatter",
     [](comm::Group& group, c10::Device device) {
       at::Tensor part = at::zeros({kGroupNumel / kGroupRanks}, at::device(device));
       group.reduce_scatter(part, numbers_of(group.rank(), device));
       return part;
     }},
    {"AllGather",
     [](comm::Group& group, c10::Device device) {
       at::Tensor all = at::zeros({kGroupNumel * kGroupRanks}, at::device(device));
       group.all_gather(all, numbers_of(group.rank(), device));
       return all;
     }},
    {"Broadcast",
     [](comm::Group& group, c10::Device device) {
       at::Tensor tensor = numbers_of(group.rank(), device);
       group.broadcast(tensor, 1);
       return tensor;
     }},
    {"Reduce",
     [](comm::Group& group, c10::Device device) {
       at::Tensor tensor = numbers_of(group.rank(), device);
       group.reduce(tensor, 2, comm::ReduceOp::kMax);
       return group.rank() == 2 ? tensor : at::Tensor();
     }},
    {"Gather",
     [](comm::Group& group, c10::Device device) {
       at::Tensor all =
           group.rank() == 1 ? at::zeros({kGroupNumel * kGroupRanks}, at::device(device)) : at::Tensor();
       group.gather(all, numbers_of(group.rank(), device), 1);
       return all;
     }},
    {"Scatter",
     [](comm::Group& group, c10::Device device) {
       at::Tensor part = at::zeros({kGroupNumel / kGroupRanks}, at::device(device));
       group.scatter(part, group.rank() == 0 ? numbers_of(7, device) : at::Tensor(), 0);
       return part;
     }},
    {"AllToAll",
     [](comm::Group& group, c10::Device device) {
       at::Tensor output = at::zeros({kGroupNumel}, at::device(device));
       group.all_to_all(output, numbers_of(group.rank(), device));
       return output;
     }},
    {"AllToAllCoalesced",
     [](comm::Group& group, c10::Device device) {
       std::vector<comm::TensorExchange> pairs;
       for (const at::ScalarType type : {at::kFloat, at::kShort}) {
         const at::Tensor numbers = numbers_of(group.rank(), device).to(type);
         pairs.push_back({.output = at::zeros_like(numbers), .input = numbers});
       }
       group.all_to_all_coalesced(pairs);
       return pairs[0].output.add(pairs[1].output);
     }},
    {"Messages",
     [](comm::Group& group, c10::Device device) {
       at::Tensor got = at::zeros({kGroupNumel}, at::device(device));
       const int next = (group.rank() + 1) % kGroupRanks,
                 before = (group.rank() + kGroupRanks - 1) % kGroupRanks;
       comm::Pending received = group.recv_async(got, before);
       comm::Pending sent = group.send_async(numbers_of(group.rank(), device), next);
       received.wait();
       sent.wait();
       return got;
     }},
};

/// Runs ranks as threads over the backend, and compares all operations.
inline void expect_groups_carry_what_the_cpu_carries(const std::string& backend, const std::string& device) {
  comm::run_ranks_as_threads(kGroupRanks,
                             [](comm::Context& context) {
                               for (const auto& [name, run] : kGroupOperations) {
                                 const at::Tensor there = run(context.world(), context.device());
                                 const at::Tensor here = run(context.world(), c10::kCPU);
                                 ASSERT_EQ(there.defined(), here.defined()) << name;
                                 if (!here.defined()) continue;
                                 EXPECT_EQ(there.device(), context.device()) << name;
                                 EXPECT_TRUE(there.cpu().equal(here)) << name;
                               }
                             },
                             {.backend = backend, .device = device, .timeout_s = 30});
}

inline void expect_waiting_twice_brings_a_result_once(const std::string& backend, const std::string& device) {
  comm::run_ranks_as_threads(kGroupRanks,
                             [](comm::Context& context) {
                               at::Tensor tensor = numbers_of(context.rank(), context.device());
                               comm::Pending pending = context.world().all_reduce_async(tensor);
                               pending.wait();
                               tensor.zero_();
                               pending.wait();
                               EXPECT_EQ(tensor.abs().max().item<float>(), 0);
                             },
                             {.backend = backend, .device = device, .timeout_s = 30});
}

}  // namespace trireme::test
