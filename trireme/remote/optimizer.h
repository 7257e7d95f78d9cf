#pragma once
// Optimizers that run where the parameters are: one on every worker that owns some, with the state and the
// gradients there; only the numbers of contexts travel. Several trainers may have an optimizer each of the
// same parameters: on a worker one step runs at a time. Source: PyTorch's DistributedOptimizer.
//
//   remote::DistributedOptimizer optimizer(*agent, {.name = "sgd", .lr = 0.05}, parameters);
//   { remote::Context context(*agent); ...; context.backward({loss}); optimizer.step(context); }

#include <memory>
#include <vector>

#include "trireme/optim/optimizer.h"
#include "trireme/remote/autograd.h"

namespace trireme::remote {

class OwnerOptimizer;

class DistributedOptimizer {
 public:
  /// Makes them, and waits. Parameters are leaves that need gradients; `options` as optim::make_optimizer()
  /// has them, which throws on the owner and so here. Throws CommError that names an owner that has ended.
  DistributedOptimizer(const rpc::Agent& agent, const optim::OptimizerOptions& options,
                       const std::vector<rpc::RRef<at::Tensor>>& parameters);
  ~DistributedOptimizer();
  DistributedOptimizer(const DistributedOptimizer&) = delete;
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  /// One update on every owner from the gradients of the context; waits for all. Parameters without a
  /// gradient there are left alone.
  void step(const Context& context);
  /// The rate of the steps from here on, in place of the options'. Throws as
  /// optim::require_learning_rate() does. Not thread-safe: one thread steps and sets rates.
  void set_lr(double lr);

 private:
  std::shared_ptr<rpc::AgentCore> core_;
  std::vector<rpc::RRef<OwnerOptimizer>> owners_;
  double lr_;
};

/// References to all parameters of a module that is on this worker, in the module's order: the result of a
/// function for the trainer.
template <class Module>
std::vector<rpc::RRef<at::Tensor>> parameter_references(const rpc::Agent& agent, const Module& module) {
  std::vector<rpc::RRef<at::Tensor>> references;
  for (const at::Tensor& each : module.parameters()) references.push_back(agent.share(each));
  return references;
}

}  // namespace trireme::remote
