#include "trireme/remote/shard.h"

#include <charconv>
#include <set>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/comm/device.h"
#include "trireme/model/checkpointed.h"
#include "trireme/model/deferred.h"
#include "trireme/model/layer_cuts.h"

template <>
struct trireme::wire::Field<trireme::model::ModelOptions>
    : ListedField<trireme::model::ModelOptions, Field<trireme::model::ModelOptions>> {
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.name, self.hidden, self.layers, self.heads, self.width, self.weights);
  }
};

template <>
struct trireme::wire::Field<trireme::remote::ShardOptions>
    : ListedField<trireme::remote::ShardOptions, Field<trireme::remote::ShardOptions>> {
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.model, self.input_shape, self.num_classes, self.seed, self.first_layer,
                    self.end_layer, self.device);
  }
};

namespace trireme::remote {

Shard::Shard(std::vector<model::Layer> layers, std::shared_ptr<void> keeps_alive, c10::Device device)
    : keeps_alive_(std::move(keeps_alive)), device_(device), layers_(std::move(layers)) {
  require(!layers_.empty(), "a part of a model needs layers, and got none");
  for (const auto& each : layers_) {
    require(each.takes.empty() && each.gives.empty(), "layer '", each.name,
            "' exchanges tensors with layers that are no neighbours; a part that other workers call maps one "
            "tensor to one");
    model::move_to(each, device_);
    recomputed_.push_back(model::checkpointed(each));
  }
}

at::Tensor Shard::forward(const rpc::RRef<at::Tensor>& input, const rpc::RRef<at::Tensor>& after,
                          bool recomputes) {
  at::Tensor value = input.to_here().to(device_);
  while (after && !after.local_future().wait_for(kLongestTimeout_s)) {
  }
  const rpc::BlockedScope blocked;
  const std::lock_guard lock(mutex_);
  for (const auto& each : recomputes ? recomputed_ : layers_) value = each.forward(value);
  return value;
}

std::vector<rpc::RRef<at::Tensor>> Shard::parameters() {
  const auto agent = rpc::this_agent();
  std::vector<rpc::RRef<at::Tensor>> references;
  std::set<c10::TensorImpl*> seen;
  for (const auto& layer : layers_) {
    for (const auto& [name, parameter] : layer.parameters) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) references.push_back(agent->share(parameter));
    }
  }
  return references;
}

std::vector<std::string> Shard::parameter_names() const {
  std::vector<std::string> names;
  std::set<c10::TensorImpl*> seen;
  for (const auto& layer : layers_) {
    for (const auto& [name, parameter] : layer.parameters) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) names.push_back(name);
    }
  }
  return names;
}

void Shard::train(bool on) {
  const std::lock_guard lock(mutex_);
  for (const auto& layer : layers_) {
    for (const auto& module : layer.modules) module->train(on);
  }
}

std::shared_ptr<Shard> part_of(const torch::nn::Sequential& chain, int part, int parts, c10::Device device) {
  require(part >= 0 && part < parts, "part ", part, " of ", parts, "; expected 0 to ", parts - 1);
  const std::vector<model::Layer> layers = model::layers_of(chain);
  std::vector<int> bounds = model::cuts_by_parameters(layers, parts);
  bounds.insert(bounds.begin(), 0);
  bounds.push_back(static_cast<int>(layers.size()));
  const auto index = static_cast<std::size_t>(part);
  return std::make_shared<Shard>(
      std::vector<model::Layer>(layers.begin() + bounds[index], layers.begin() + bounds[index + 1]),
      chain.ptr(), device);
}

namespace {

/// "cuda:1" is the second device of its kind, "cuda" the first. Throws InvalidArgument.
c10::Device device_of(const std::string& name) {
  const auto colon = name.find(':');
  const c10::DeviceType type = comm::device_type_of(name.substr(0, colon));
  if (colon == std::string::npos) return comm::device_of_rank(type, 0, comm::DeviceUse::kShared);
  const std::string number = name.substr(colon + 1);
  int index = -1;
  const auto read = std::from_chars(number.data(), number.data() + number.size(), index);
  const bool is_number = read.ec == std::errc{} && read.ptr == number.data() + number.size() && index >= 0;
  require(is_number && type != c10::kCPU, "'", name, "' is no device; expected a name such as cpu or cuda:0");
  const c10::Device device = comm::device_of_rank(type, index, comm::DeviceUse::kShared);
  require(device.index() == index, "this worker's host has no device '", name, "': numbers begin at 0");
  return device;
}

std::shared_ptr<Shard> build_shard(const ShardOptions& options) {
  const c10::Device device = device_of(options.device);
  const auto whole = deferred([&] {
    return model::make_model(options.model, options.input_shape, options.num_classes, options.seed);
  });
  auto layers = whole->layers();
  const auto count = static_cast<std::int64_t>(layers.size());
  require(options.first_layer >= 0 && options.first_layer < options.end_layer && options.end_layer <= count,
          "layers [", options.first_layer, ", ", options.end_layer, ") of model '", options.model.name,
          "', which has ", count, ": expected a part of it");
  std::vector<model::Layer> part(layers.begin() + options.first_layer, layers.begin() + options.end_layer);
  for (const auto& each : part) model::materialise(each);
  whole->initialise(options.seed);
  return std::make_shared<Shard>(std::move(part), whole, device);
}
constexpr auto& kBuildShard = rpc::function<"trireme.build_shard", &build_shard>;

}  // namespace

rpc::RRef<Shard> make_shard(const rpc::Agent& agent, const rpc::Callee& worker, const ShardOptions& options) {
  return agent.remote(worker, kBuildShard, options);
}

}  // namespace trireme::remote
