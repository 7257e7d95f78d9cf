#include "trireme/remote/optimizer.h"

#include <map>
#include <mutex>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/remote/tensor_field.h"

template <>
struct trireme::wire::Field<trireme::optim::OptimizerOptions>
    : ListedField<trireme::optim::OptimizerOptions, Field<trireme::optim::OptimizerOptions>> {
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.name, self.lr, self.weight_decay, self.decay_1d, self.momentum, self.nesterov,
                    self.beta1, self.beta2, self.alpha, self.centered, self.variance_steps, self.eps,
                    self.trust_coefficient, self.muon_scale, self.muon_spares, self.muon_adamw_rate);
  }
};

namespace trireme::remote {

class OwnerOptimizer {
 public:
  OwnerOptimizer(const optim::OptimizerOptions& options,
                 const std::vector<rpc::RRef<at::Tensor>>& references) {
    for (const auto& each : references) {
      const at::Tensor parameter = *each.local_value();
      require(parameter.is_leaf() && parameter.requires_grad(), "parameter ", parameters_.size(),
              " of the optimizer is no leaf that needs gradients");
      parameters_.emplace_back(text("parameter", parameters_.size()), parameter);
    }
    // An optimizer updates tensors of one device.
    std::map<std::string, optim::NamedTensors> by_device;
    for (const auto& each : parameters_) by_device[each.second.device().str()].push_back(each);
    for (const auto& [device, parameters] : by_device) {
      optimizers_.push_back(optim::make_optimizer(options, parameters));
    }
  }

  void step(ContextId context, double lr) {
    // Optimizers of several trainers share the parameters, and so their .grad.
    static std::mutex one_step_at_once;
    const std::lock_guard lock(one_step_at_once);
    std::map<c10::TensorImpl*, at::Tensor> gradients;
    for (const auto& [tensor, gradient] : gradients_of(context)) {
      gradients[tensor.unsafeGetTensorImpl()] = gradient;
    }
    // The optimizer reads .grad. The previous gradients belong to other code, and are restored after the
    // step.
    std::vector<at::Tensor> before;
    for (auto& [name, parameter] : parameters_) {
      before.push_back(parameter.mutable_grad());
      const auto found = gradients.find(parameter.unsafeGetTensorImpl());
      parameter.mutable_grad() = found == gradients.end() ? at::Tensor() : found->second;
    }
    const auto restore = [&] {
      for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].second.mutable_grad() = before[i];
    };
    try {
      for (const auto& each : optimizers_) {
        each->set_lr(lr);
        each->step();
      }
    } catch (...) {
      restore();
      throw;
    }
    restore();
  }

 private:
  optim::NamedTensors parameters_;
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers_;
};

namespace {

std::shared_ptr<OwnerOptimizer> make_owner_optimizer(const optim::OptimizerOptions& options,
                                                     const std::vector<rpc::RRef<at::Tensor>>& parameters) {
  return std::make_shared<OwnerOptimizer>(options, parameters);
}
constexpr auto& kMake = rpc::function<"trireme.make_optimizer", &make_owner_optimizer>;
constexpr auto& kStep = rpc::function<"trireme.optimizer_step", &OwnerOptimizer::step>;

bool is_ready(const rpc::RRef<OwnerOptimizer>& optimizer) { return optimizer.local_value() != nullptr; }
constexpr auto& kIsReady = rpc::function<"trireme.optimizer_is_ready", &is_ready>;

}  // namespace

DistributedOptimizer::DistributedOptimizer(const rpc::Agent& agent, const optim::OptimizerOptions& options,
                                           const std::vector<rpc::RRef<at::Tensor>>& parameters)
    : core_(agent.core()), lr_(*optim::with_defaults(options).lr) {
  require(!parameters.empty(), "an optimizer needs parameters, and got none");
  std::map<rpc::WorkerId, std::vector<rpc::RRef<at::Tensor>>> by_owner;
  for (const auto& each : parameters) by_owner[each.owner()].push_back(each);
  for (const auto& [owner, owned] : by_owner) owners_.push_back(agent.remote(owner, kMake, options, owned));
  for (const auto& each : owners_) agent.rpc_sync(each.owner(), kIsReady, each);
}
DistributedOptimizer::~DistributedOptimizer() = default;

void DistributedOptimizer::set_lr(double lr) {
  optim::require_learning_rate(lr);
  lr_ = lr;
}

void DistributedOptimizer::step(const Context& context) {
  const rpc::Agent agent(core_, rpc::Agent::Borrowed{});
  std::vector<rpc::Future<void>> steps;
  for (const auto& each : owners_)
    steps.push_back(agent.rpc_async(each.owner(), kStep, each, context.id(), lr_));
  rpc::when_all(steps).get();
}

}  // namespace trireme::remote
