#pragma once
// Gradients that flow back through remote calls. Within a Context, tensors that need gradients carry their
// history across calls. backward() follows the same calls in reverse, over all workers at once. Every worker
// keeps the gradients of its parameters, apart from those of other contexts. libtorch's engine for
// distributed autograd does this (torch/csrc/distributed/autograd). Its messages go through the agent that
// has joined by the function below. A process has one such agent at a time.
//
//   remote::Context context(agent);
//   at::Tensor y = agent->rpc_sync<&forward>("w1", x);
//   context.backward({loss(y)});
//   optimizer.step(context);
//
// Contexts of several threads continue concurrently with each other. Backward expects that all messages of
// the context contribute to its roots ("fast mode"): a result without a use leaves gradients out.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/remote/tensor_field.h"
#include "trireme/rpc/agent.h"

namespace trireme::remote {

using ContextId = std::int64_t;

/// rpc::Agent::join() for a worker whose calls carry gradients. A process may join again, also another group,
/// when its last agent is destroyed; contexts of that one are forgotten. Throws as Agent::join() does. Throws
/// InvalidArgument where this process has such an agent. Throws it also where another process of the group
/// has the number of this process's contexts since its first group (one in 32767).
std::shared_ptr<rpc::Agent> join(rpc::AgentOptions options);

/// The calls of this thread, from its construction to its destruction, belong together; at its end all
/// workers forget it. Functions that are called in it are in it, too. Not to be nested on one thread.
class Context {
 public:
  /// Throws InvalidArgument on an agent without autograd, and where the thread is in a context.
  explicit Context(const rpc::Agent& agent);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  ContextId id() const { return id_; }
  /// From tensors of one element, through all workers; waits. Adds to present gradients. Throws CommError
  /// that names a worker that has ended meanwhile.
  void backward(const std::vector<at::Tensor>& roots, bool retain_graph = false);
  /// From a value on another worker.
  void backward(const rpc::RRef<at::Tensor>& root, bool retain_graph = false);
  /// Of this worker's tensors.
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients() const;

 private:
  std::shared_ptr<rpc::AgentCore> core_;
  ContextId id_;
};

/// In a function that was called in a context: its id; -1 elsewhere.
ContextId current_context();
/// This worker's part of it: tensors and their gradients. Throws InvalidArgument for a context that is
/// unknown here, as no message of it has come here or it has ended.
std::vector<std::pair<at::Tensor, at::Tensor>> gradients_of(ContextId context);
/// How many contexts this worker remembers.
std::size_t num_contexts();

}  // namespace trireme::remote
