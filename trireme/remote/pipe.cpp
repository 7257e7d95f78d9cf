#include "trireme/remote/pipe.h"

#include <ATen/Functions.h>

#include <utility>

#include "trireme/base/error.h"
#include "trireme/model/deferred.h"
#include "trireme/model/layer_cuts.h"

namespace trireme::remote {

Pipe::Pipe(const rpc::Agent& agent, std::vector<rpc::RRef<Shard>> parts, PipeOptions options)
    : core_(agent.core()), parts_(std::move(parts)), options_(options) {
  require(!parts_.empty(), "a pipe needs parts, and got none");
  require(options_.chunks > 0, "a pipe of ", options_.chunks, " chunks; expected at least 1");
}

rpc::RRef<at::Tensor> Pipe::forward(const at::Tensor& input) const {
  require(input.defined() && input.dim() > 0 && input.size(0) > 0,
          "the input of a pipe has no samples in its first dim");
  const rpc::Agent agent(core_, rpc::Agent::Borrowed{});
  const auto chunks = input.chunk(options_.chunks);
  std::vector<rpc::RRef<at::Tensor>> before(parts_.size());
  std::vector<rpc::Future<at::Tensor>> outputs;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const bool is_last = i + 1 == chunks.size();
    const bool recomputes = options_.checkpoint == PipeCheckpoint::kAlways ||
                            (options_.checkpoint == PipeCheckpoint::kExceptLast && !is_last);
    auto value = agent.share(chunks[i]);
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      value = parts_[part].remote<&Shard::forward>(value, before[part], recomputes);
      before[part] = value;
    }
    outputs.push_back(value.to_here_async());
  }
  return agent.share(at::cat(rpc::when_all(outputs).get()));
}

Pipe Pipe::with(PipeOptions options) const {
  return Pipe(rpc::Agent(core_, rpc::Agent::Borrowed{}), parts_, options);
}

std::vector<rpc::RRef<at::Tensor>> Pipe::parameters() const {
  std::vector<rpc::RRef<at::Tensor>> all;
  for (const auto& part : parts_) {
    for (auto& each : part.rpc_sync<&Shard::parameters>()) all.push_back(std::move(each));
  }
  return all;
}

std::vector<std::string> Pipe::parameter_names() const {
  std::vector<std::string> all;
  for (const auto& part : parts_) {
    for (auto& each : part.rpc_sync<&Shard::parameter_names>()) all.push_back(std::move(each));
  }
  return all;
}

void Pipe::train(bool on) const {
  for (const auto& part : parts_) part.rpc_sync<&Shard::train>(on);
}

namespace {

/// Where each part ends. Two parts are those of the tutorial: the stem and the stages of 3 and 4 blocks; the
/// stages of 6 and 3 blocks and the last layer.
std::vector<std::int64_t> ends_of_parts(const ShardOptions& model, std::size_t num_parts) {
  const auto whole = deferred(
      [&] { return model::make_model(model.model, model.input_shape, model.num_classes, model.seed); });
  const std::vector<model::Layer> layers = whole->layers();
  std::vector<std::int64_t> ends = {8};
  if (num_parts != 2) {
    const std::vector<int> cuts = model::cuts_by_parameters(layers, static_cast<int>(num_parts));
    ends.assign(cuts.begin(), cuts.end());
  }
  ends.push_back(std::ssize(layers));
  return ends;
}

}  // namespace

Pipe make_dist_resnet50(const rpc::Agent& agent, const std::vector<std::string>& workers,
                        const std::vector<std::string>& devices, std::int64_t num_splits,
                        const DistResNet50Options& options) {
  require(!workers.empty() && devices.size() == workers.size(),
          "a distributed ResNet-50 has at least one worker, and a device for each of them; found ",
          workers.size(), " workers and ", devices.size(), " devices");
  require(num_splits >= 1, "found num_splits = ", num_splits, "; expected at least 1 micro-batch");
  ShardOptions part;
  part.model.name = "resnet50";
  part.input_shape = options.input_shape;
  part.num_classes = options.num_classes;
  part.seed = options.seed;
  const std::vector<std::int64_t> ends = ends_of_parts(part, workers.size());
  std::vector<rpc::RRef<Shard>> parts;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    part.first_layer = std::exchange(part.end_layer, ends[i]);
    part.device = devices[i];
    parts.push_back(make_shard(agent, workers[i], part));
  }
  return Pipe(agent, std::move(parts), {.chunks = num_splits, .checkpoint = options.checkpoint});
}

}  // namespace trireme::remote
