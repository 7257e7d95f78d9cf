#include "trireme/remote/pipe.h"

#include <ATen/Functions.h>

#include <utility>

#include "trireme/base/error.h"

namespace trireme::remote {
namespace {

constexpr auto& kForward = rpc::function<"trireme.Shard.forward", &Shard::forward>;
constexpr auto& kParameters = rpc::function<"trireme.Shard.parameters", &Shard::parameters>;
constexpr auto& kNames = rpc::function<"trireme.Shard.parameter_names", &Shard::parameter_names>;
constexpr auto& kTrain = rpc::function<"trireme.Shard.train", &Shard::train>;

}  // namespace

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
      value = agent.remote(parts_[part].owner(), kForward, parts_[part], value, before[part], recomputes);
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
  const rpc::Agent agent(core_, rpc::Agent::Borrowed{});
  std::vector<rpc::RRef<at::Tensor>> all;
  for (const auto& part : parts_) {
    for (auto& each : agent.rpc_sync(part.owner(), kParameters, part)) all.push_back(std::move(each));
  }
  return all;
}

std::vector<std::string> Pipe::parameter_names() const {
  const rpc::Agent agent(core_, rpc::Agent::Borrowed{});
  std::vector<std::string> all;
  for (const auto& part : parts_) {
    for (auto& each : agent.rpc_sync(part.owner(), kNames, part)) all.push_back(std::move(each));
  }
  return all;
}

void Pipe::train(bool on) const {
  const rpc::Agent agent(core_, rpc::Agent::Borrowed{});
  for (const auto& part : parts_) agent.rpc_sync(part.owner(), kTrain, part, on);
}

Pipe make_dist_resnet50(const rpc::Agent& agent, const rpc::Callee& first, const rpc::Callee& second,
                        const std::vector<std::int64_t>& input_shape, std::int64_t num_classes,
                        std::uint64_t seed, PipeOptions options) {
  // Stem and the stages of 3 and 4 blocks here, those of 6 and 3 and the last layer there, as in the
  // tutorial.
  ShardOptions part;
  part.model.name = "resnet50";
  part.input_shape = input_shape;
  part.num_classes = num_classes;
  part.seed = seed;
  part.end_layer = 8;
  const auto one = make_shard(agent, first, part);
  part.first_layer = 8;
  part.end_layer = 18;
  return Pipe(agent, {one, make_shard(agent, second, part)}, options);
}

}  // namespace trireme::remote
