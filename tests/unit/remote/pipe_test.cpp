// Parts of one chain on workers are the chain: its output, and the names of its parameters, each once. The
// worker calls itself.

#include "trireme/remote/pipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trireme/base/error.h"
#include "trireme/model/initialise.h"

namespace trireme::remote {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

torch::nn::Sequential chain() {
  torch::nn::Sequential layers(torch::nn::Linear(2, 8), torch::nn::Tanh(), torch::nn::Linear(8, 8),
                               torch::nn::Tanh(), torch::nn::Linear(8, 1));
  model::initialise(*layers, 1);  // parts are made at the same time
  return layers;
}
std::shared_ptr<Shard> make_part(int part) { return part_of(chain(), part, 3); }

TEST(PartsOfAChain, HaveItsOutputAndTheNamesOfItsParameters) {
  rpc::AgentOptions options{.name = "alone", .directory = std::make_shared<rpc::LocalDirectory>()};
  options.timeout_s = 10;
  const auto agent = join(options);
  std::vector<rpc::RRef<Shard>> parts;
  for (int part = 0; part < 3; ++part)
    parts.push_back(agent->remote("alone", rpc::function<"make_part", &make_part>, part));
  const Pipe pipe(*agent, parts, {.chunks = 2});
  EXPECT_THAT(pipe.parameter_names(),
              ElementsAre("0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"));
  const at::Tensor input = torch::arange(8, at::kFloat).view({4, 2});
  EXPECT_TRUE(at::allclose(*pipe.forward(input).local_value(), chain()->forward(input)));
  agent->leave();
}

TEST(PartsOfAChain, ThatAreNoneAreRejected) {
  EXPECT_THAT([] { part_of(chain(), 2, 2); },
              ThrowsMessage<InvalidArgument>(HasSubstr("part 2 of 2; expected 0 to 1")));
  EXPECT_THAT([] { part_of(chain(), 0, 6); },
              ThrowsMessage<InvalidArgument>(HasSubstr("5 layers cannot be cut into 6")));
}

}  // namespace
}  // namespace trireme::remote
