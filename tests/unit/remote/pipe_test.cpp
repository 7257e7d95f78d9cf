// Parts of a chain on several workers equal the chain: the same output, and each parameter name once. The
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
  model::initialise(*layers, 1);  // because parts are created at the same time
  return layers;
}
std::shared_ptr<Shard> make_part(int part) { return part_of(chain(), part, 3); }

TEST(PartsOfAChain, HaveOutputAndParameterNamesOfChain) {
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

TEST(DistResNet50, MatchesOneProcessOverAnyWorkers) {
  constexpr std::int64_t kClasses = 10;
  rpc::AgentOptions joining{.name = "alone", .directory = std::make_shared<rpc::LocalDirectory>()};
  joining.timeout_s = 60;
  const auto agent = join(joining);
  const DistResNet50Options options{.input_shape = {3, 32, 32}, .num_classes = kClasses, .seed = 5};
  const auto whole = model::make_model({.name = "resnet50"}, options.input_shape, kClasses, options.seed);
  whole->eval();
  torch::manual_seed(2);
  const at::Tensor images = torch::randn({4, 3, 32, 32});
  const torch::NoGradGuard no_grad;
  const at::Tensor expected = whole->forward(images);
  for (const std::size_t workers : {1, 2, 3}) {
    SCOPED_TRACE(workers);
    const Pipe pipe = make_dist_resnet50(*agent, std::vector<std::string>(workers, "alone"),
                                         std::vector<std::string>(workers, "cpu"), /*num_splits=*/2, options);
    pipe.train(false);
    EXPECT_EQ(pipe.parameters().size(), whole->parameters().size());
    EXPECT_TRUE(at::allclose(*pipe.forward(images).local_value(), expected, 1e-4, 1e-5));
  }
  EXPECT_THAT(
      [&] {
        make_dist_resnet50(*agent, {"alone", "alone"}, {"cpu"}, 2, options);
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("found 2 workers and 1 devices")));
  EXPECT_THAT([&] { make_dist_resnet50(*agent, {"alone"}, {"cpu"}, 0, options); },
              ThrowsMessage<InvalidArgument>(HasSubstr("num_splits = 0; expected at least 1")));
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
