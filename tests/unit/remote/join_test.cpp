// A process that joins with autograd more than once: after leaving, after errors, and in other groups. Its
// worker calls itself.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <functional>
#include <future>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/remote/autograd.h"
#include "trireme/remote/tensor_field.h"

namespace trireme::remote {
namespace {

std::atomic<bool> backward_has_begun = false, backward_may_end = true;

/// An operation whose backward waits for its release.
struct Waits : torch::autograd::Function<Waits> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x * 2; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    backward_has_begun = true;
    while (!backward_may_end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return {gradients[0] * 2};
  }
};

at::Tensor twice(const at::Tensor& x) { return Waits::apply(x); }
constexpr auto& kTwice = rpc::function<"twice", &twice>;

std::shared_ptr<rpc::Agent> join_as(const std::string& name, std::shared_ptr<rpc::Directory> directory,
                                    const std::string& group = "rpc") {
  rpc::AgentOptions options{.name = name, .directory = std::move(directory), .group = group};
  options.timeout_s = 10;
  return join(options);
}
std::shared_ptr<rpc::Directory> new_directory() { return std::make_shared<rpc::LocalDirectory>(); }

std::string thrown_by(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void expect_gradients(const rpc::Agent& agent) {
  const at::Tensor leaf = torch::arange(4, torch::kFloat32).requires_grad_(true);
  {
    Context context(agent);
    context.backward({agent.rpc_sync(agent.name(), kTwice, leaf).sum()});
    const auto gradients = context.gradients();
    ASSERT_EQ(gradients.size(), 1u);
    EXPECT_TRUE(torch::equal(gradients[0].second, torch::full({4}, 2.0F)));
  }
  for (int i = 0; i < 2000 && num_contexts() > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(num_contexts(), 0u);
}

TEST(Join, ProcessRejoinsAfterLeaving) {
  const auto directory = new_directory();
  for (int i = 0; i < 3; ++i) {
    const auto agent = join_as("a", directory);
    EXPECT_THROW(join_as("b", directory), InvalidArgument) << "one at a time";
    expect_gradients(*agent);
    agent->leave();
  }
}

TEST(Join, ProcessRejoinsAfterFailedJoin) {
  const auto directory = new_directory();
  EXPECT_THROW(join_as("a b", directory), InvalidArgument);
  EXPECT_THROW(join_as("a", nullptr), InvalidArgument);
  expect_gradients(*join_as("a", directory));
  EXPECT_THROW(join_as("", directory), InvalidArgument);
  expect_gradients(*join_as("b", directory));
}

TEST(Join, PendingBackwardEndsWithItsAgent) {
  auto agent = join_as("a", new_directory());
  std::promise<std::string> thrown;
  backward_has_begun = backward_may_end = false;
  std::thread user([&] {
    Context context(*agent);
    const at::Tensor leaf = torch::ones({4}).requires_grad_(true);
    const at::Tensor y = agent->rpc_sync("a", kTwice, leaf);
    thrown.set_value(thrown_by([&] { context.backward({y.sum()}); }));
  });
  while (!backward_has_begun) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::thread([&] { agent->core()->stop(); }).join();
  backward_may_end = true;
  auto message = thrown.get_future();
  ASSERT_EQ(message.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  const std::string error = message.get();
  EXPECT_NE(error.find("this worker has left its group"), std::string::npos) << error;
  user.join();
  agent.reset();
  expect_gradients(*join_as("a", new_directory()));
}

TEST(Join, ContextOutlivingItsGroupIsForgotten) {
  auto agent = join_as("a", new_directory());
  auto context = std::make_unique<Context>(*agent);
  const at::Tensor leaf = torch::ones({4}).requires_grad_(true);
  const at::Tensor y = agent->rpc_sync("a", kTwice, leaf);
  std::thread([&] {
    agent.reset();
    agent = join_as("a", new_directory());
  }).join();
  EXPECT_EQ(num_contexts(), 0u);
  const std::string message = thrown_by([&] { agent->rpc_sync("a", kTwice, leaf); });
  EXPECT_NE(message.find("of a group that this process has left"), std::string::npos) << message;
  EXPECT_THROW(context->backward({y.sum()}), std::exception);
  context.reset();
  expect_gradients(*agent);
}

TEST(Join, ContextsOfLaterGroupHaveUniqueNumbers) {
  // This process has the number of its first group. In this group another process already has that number.
  const ContextId number = [] {
    const auto first = join_as("a", new_directory());
    return Context(*first).id() >> 48;
  }();
  const auto later = new_directory();
  later->set(text("rpc/autograd/", number), "another process");
  const std::string message = thrown_by([&] { join_as("a", later); });
  EXPECT_NE(message.find(text("numbers its contexts ", number)), std::string::npos) << message;
  expect_gradients(*join_as("a", later, "another group"));
}

}  // namespace
}  // namespace trireme::remote
