// A program outside the source tree whose ranks use RPC: a function with a tensor, its gradient, a member
// function of a remote value, and the library's own functions.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <cstdio>
#include <stdexcept>

#include "trireme/remote/init.h"
#include "trireme/remote/optimizer.h"
#include "trireme/remote/tensor_field.h"

using namespace trireme;

struct Scale {
  at::Tensor factor = at::full({1}, 3.0).requires_grad_(true);
  at::Tensor apply(const at::Tensor& x) { return x.mul(factor); }
  rpc::RRef<at::Tensor> parameter() { return rpc::this_agent()->share(factor); }
};
std::shared_ptr<Scale> make_scale() { return std::make_shared<Scale>(); }
double fail(const std::string& why) { throw std::out_of_range(why); }

constexpr auto& kMake = rpc::function<"make_scale", &make_scale>;
constexpr auto& kApply = rpc::function<"Scale.apply", &Scale::apply>;
constexpr auto& kParameter = rpc::function<"Scale.parameter", &Scale::parameter>;
constexpr auto& kFail = rpc::function<"fail", &fail>;

void call(const rpc::Agent& agent) {
  const auto scale = agent.remote("worker1", kMake);
  const auto factor = agent.rpc_sync("worker1", kParameter, scale);
  remote::DistributedOptimizer optimizer(agent, {.name = "sgd", .lr = 0.5, .momentum = 0}, {factor});
  {
    remote::Context context(agent);
    context.backward({agent.rpc_sync("worker1", kApply, scale, at::ones({4})).sum()});  // its gradient is 4
    optimizer.step(context);
  }
  std::string thrown;
  try {
    agent.rpc_sync("worker1", kFail, "too far");
  } catch (const std::out_of_range& error) {
    thrown = error.what();
  }
  std::printf("calls: factor %.1f, thrown: %s\n", factor.to_here().item<double>(), thrown.c_str());
}

int main() {
  try {
    const auto context = comm::Context::from_environment();
    const auto agent = remote::init(*context, "worker" + std::to_string(context->rank()));
    if (context->is_main()) call(*agent);
    agent->leave();
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "calls: %s\n", error.what());
    return error.exit_code();
  }
}
