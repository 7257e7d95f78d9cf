// Parts of a model on a device of their worker. The caller sees CPU tensors and their numbers.
#include <ATen/ops/linspace.h>
#include <gtest/gtest.h>

#include "tests/support/stand_in_device.h"
#include "trireme/remote/optimizer.h"
#include "trireme/remote/pipe.h"

namespace trireme::remote {
namespace {

std::shared_ptr<rpc::Agent> join_alone() {
  return join({.name = "a", .directory = std::make_shared<rpc::LocalDirectory>()});
}

/// One half of a small model.
rpc::RRef<Shard> half(const rpc::Agent& agent, std::int64_t first, std::int64_t end,
                      const std::string& device) {
  ShardOptions options;
  options.model = {.name = "mlp", .hidden = {8, 8}};
  options.input_shape = {6};
  options.num_classes = 3;
  options.seed = 4;
  options.first_layer = first;
  options.end_layer = end;
  options.device = device;
  return make_shard(agent, "a", options);
}

struct Outcome {
  at::Tensor output;
  std::vector<at::Tensor> parameters;
};

Outcome train(const std::string& first, const std::string& second, PipeCheckpoint checkpoint) {
  const auto agent = join_alone();
  const Pipe pipe(*agent, {half(*agent, 0, 2, first), half(*agent, 2, 3, second)},
                  {.chunks = 2, .checkpoint = checkpoint});
  const auto parameters = pipe.parameters();
  EXPECT_EQ(parameters.front().local_value()->device().type(), c10::Device(first).type());
  EXPECT_EQ(parameters.back().local_value()->device().type(), c10::Device(second).type());
  DistributedOptimizer optimizer(*agent, {.name = "sgd", .lr = 0.1}, parameters);
  Outcome outcome;
  for (int step = 0; step < 3; ++step) {
    Context context(*agent);
    outcome.output = *pipe.forward(at::linspace(-1, 1, 24).view({4, 6})).local_value();
    EXPECT_TRUE(outcome.output.is_cpu());
    context.backward({outcome.output.square().sum()});
    optimizer.step(context);
  }
  for (const auto& each : parameters) outcome.parameters.push_back(each.to_here());
  return outcome;
}

TEST(ShardOnADevice, MatchesOutputsAndParametersOfCpu) {
  for (const auto checkpoint : {PipeCheckpoint::kNever, PipeCheckpoint::kAlways}) {
    const Outcome expected = train("cpu", "cpu", checkpoint);
    const std::string device = test::kStandInDevice;
    for (const auto& [first, second] :
         {std::pair(device, device), {"cpu", device}, {device, device + ":1"}}) {
      const Outcome found = train(first, second, checkpoint);
      EXPECT_TRUE(at::equal(found.output, expected.output)) << first << ", " << second;
      ASSERT_EQ(found.parameters.size(), expected.parameters.size());
      for (std::size_t i = 0; i < expected.parameters.size(); ++i) {
        EXPECT_TRUE(found.parameters[i].is_cpu());
        EXPECT_TRUE(at::equal(found.parameters[i], expected.parameters[i])) << i;
      }
    }
  }
}

TEST(ShardOnADevice, OneThatIsNotThereIsRejected) {
  const auto agent = join_alone();
  for (const std::string device : {"abacus", "stand_in:99", "stand_in:x", "cpu:1", ""}) {
    const auto shard = half(*agent, 0, 2, device);
    EXPECT_THROW(shard.local_value(), InvalidArgument) << device;
  }
}

}  // namespace
}  // namespace trireme::remote
