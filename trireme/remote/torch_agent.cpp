#include "trireme/remote/internal/torch_agent.h"

#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/engine/dist_engine.h>
#include <torch/csrc/distributed/autograd/rpc_messages/cleanup_autograd_context_req.h>
#include <torch/csrc/distributed/autograd/rpc_messages/cleanup_autograd_context_resp.h>
#include <torch/csrc/distributed/autograd/rpc_messages/propagate_gradients_req.h>
#include <torch/csrc/distributed/autograd/rpc_messages/propagate_gradients_resp.h>
#include <torch/csrc/distributed/rpc/request_callback_no_python.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <mutex>
#include <set>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/remote/autograd.h"
#include "trireme/remote/tensor_field.h"
#include "trireme/rpc/agent.h"

namespace trireme::remote {
namespace {

namespace autograd = torch::distributed::autograd;
using torch_rpc::JitFuture;
using torch_rpc::Message;

c10::intrusive_ptr<JitFuture> new_future() { return c10::make_intrusive<JitFuture>(at::AnyClassType::get()); }

void complete(JitFuture& future, c10::intrusive_ptr<Message> message) {
  auto storages = message->getStorages();
  future.markCompleted(at::IValue(std::move(message)), std::move(storages));
}

std::exception_ptr has_left() { return std::make_exception_ptr(CommError("this worker has left its group")); }

/// Completes the future when an answer arrives. Without an answer the destructor completes it: an agent that
/// ends drops its pending work.
class Reply {
 public:
  explicit Reply(c10::intrusive_ptr<JitFuture> future) : future_(std::move(future)) {}
  ~Reply() { future_->setErrorIfNeeded(has_left()); }
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;
  JitFuture& future() const { return *future_; }

 private:
  const c10::intrusive_ptr<JitFuture> future_;
};

/// Serializes the begin of backward passes. When the first pass of a context begins, libtorch forgets the
/// calls of an earlier backward. It does this *after* other passes of the context may continue. A call that
/// one of them has made by then would be forgotten. Then a step would not wait for its gradients.
std::mutex& beginning() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

/// Continues the backward pass of the tensors that were sent with `message`. The future is complete when the
/// gradients have arrived everywhere.
rpc::Future<void> propagate_gradients(ContextId context_id, std::int64_t message,
                                      std::vector<at::Tensor> gradients, bool retain_graph) {
  const auto context = autograd::DistAutogradContainer::getInstance().retrieveContext(context_id);
  const auto sent = context->retrieveSendFunction(message);
  sent->setGrads(gradients);
  const auto done = [&] {
    const std::lock_guard lock(beginning());  // short: the engine's threads compute
    return autograd::DistEngine::getInstance().executeSendFunctionAsync(context, sent, retain_graph);
  }();
  const rpc::Promise<void> promise;
  done->addCallback([promise, context_id](JitFuture& future) {
    if (future.hasError()) {
      promise.fail(TorchAgent::cause_of_failure(context_id, future.exception_ptr()));
    } else {
      promise.set();
    }
  });
  return promise.future();
}
constexpr auto& kPropagateGradients = rpc::function<"trireme.propagate_gradients", &propagate_gradients>;

void forget_context(ContextId context) {
  TorchAgent::forget(context);
  autograd::DistAutogradContainer::getInstance().releaseContextIfPresent(context);
}
constexpr auto& kForgetContext = rpc::function<"trireme.forget_context", &forget_context>;

ContextId context_of(torch_rpc::RpcCommandBase& request) {
  return dynamic_cast<autograd::PropagateGradientsReq&>(request).getAutogradMetadata().autogradContextId;
}

rpc::Future<void> propagate(const rpc::Agent& agent, rpc::WorkerId to, const rpc::CallOptions& options,
                            torch_rpc::RpcCommandBase& request) {
  auto& gradients = dynamic_cast<autograd::PropagateGradientsReq&>(request);
  const auto& sent = gradients.getAutogradMetadata();
  return agent.rpc_async(to, options, kPropagateGradients, sent.autogradContextId, sent.autogradMessageId,
                         gradients.getGrads(), gradients.retainGraph());
}

rpc::Future<void> tell_end(const rpc::Agent& agent, rpc::WorkerId to, const rpc::CallOptions& options,
                           torch_rpc::RpcCommandBase& request) {
  auto& ended = dynamic_cast<autograd::CleanupAutogradContextReq&>(request);
  return agent.rpc_async(to, options, kForgetContext, ended.getContextId());
}

}  // namespace

// libtorch allows fewer names and numbers of workers than a group has, and does not use those of this agent.
TorchAgent::TorchAgent(double timeout_s)
    : RpcAgent(torch_rpc::WorkerInfo("trireme", torch_rpc::worker_id_t{0}),
               std::make_unique<torch_rpc::RequestCallbackNoPython>(),
               std::chrono::milliseconds(static_cast<std::int64_t>(timeout_s * 1000))),
      core_(core_told_.get_future()) {
  // Messages of the engine hold only numbers and tensors.
  setTypeResolver(
      std::make_shared<torch_rpc::TypeResolver>([](const c10::QualifiedName& type) -> c10::StrongTypePtr {
        throw InternalError(text("a message of distributed autograd names the type ", type.qualifiedName()));
      }));
}
TorchAgent::~TorchAgent() {
  if (rpcAgentRunning_.load()) shutdown();
}

void TorchAgent::set_core(const std::shared_ptr<rpc::AgentCore>& core) { core_told_.set_value(core); }

c10::intrusive_ptr<JitFuture> TorchAgent::send(const torch_rpc::WorkerInfo& to,
                                               c10::intrusive_ptr<Message> message, float timeout_s,
                                               const torch_rpc::DeviceMap&) {
  auto future = new_future();
  const auto core = core_.get().lock();
  if (!core) {
    future->setError(has_left());
    return future;
  }
  const rpc::Agent agent(core, rpc::Agent::Borrowed{});
  const auto worker = static_cast<rpc::WorkerId>(to.id_);
  const rpc::CallOptions options{.timeout_s = std::max(timeout_s, 0.0F)};
  try {
    const bool is_end = message->type() == torch_rpc::MessageType::CLEANUP_AUTOGRAD_CONTEXT_REQ;
    const auto request = torch_rpc::deserializeRequest(*message);
    const ContextId context = is_end ? -1 : context_of(*request);
    const rpc::Future<void> answer =
        is_end ? tell_end(agent, worker, options, *request) : propagate(agent, worker, options, *request);
    answer.when_done([answer, reply = std::make_shared<Reply>(future), is_end, context] {
      if (const auto error = answer.error()) {
        if (!is_end) note_failure(context, error);
        return reply->future().setError(error);
      }
      complete(reply->future(), is_end ? std::move(autograd::CleanupAutogradContextResp()).toMessage()
                                       : std::move(autograd::PropagateGradientsResp()).toMessage());
    });
  } catch (...) {
    future->setError(std::current_exception());
  }
  return future;
}

namespace {

struct Contexts {
  std::mutex mutex;
  std::set<ContextId> known;
  std::map<ContextId, std::exception_ptr> first_failure;
};
Contexts& contexts() {
  static Contexts* const all = new Contexts;
  return *all;
}

}  // namespace

void TorchAgent::note(ContextId context) {
  const std::lock_guard lock(contexts().mutex);
  contexts().known.insert(context);
}

std::vector<ContextId> TorchAgent::noted() {
  const std::lock_guard lock(contexts().mutex);
  return {contexts().known.begin(), contexts().known.end()};
}

void TorchAgent::note_failure(ContextId context, const std::exception_ptr& error) {
  const std::lock_guard lock(contexts().mutex);
  contexts().first_failure.try_emplace(context, error);
}

std::exception_ptr TorchAgent::cause_of_failure(ContextId context, const std::exception_ptr& otherwise) {
  const std::lock_guard lock(contexts().mutex);
  const auto found = contexts().first_failure.find(context);
  return found == contexts().first_failure.end() ? otherwise : found->second;
}

void TorchAgent::forget(ContextId context) {
  const std::lock_guard lock(contexts().mutex);
  contexts().known.erase(context);
  contexts().first_failure.erase(context);
}

const torch_rpc::WorkerInfo& TorchAgent::getWorkerInfo(const std::string& name) const {
  throw InternalError(text("worker '", name, "' was requested by its name"));
}

const torch_rpc::WorkerInfo& TorchAgent::getWorkerInfo(torch_rpc::worker_id_t id) const {
  const std::lock_guard lock(mutex_);
  auto& worker = workers_[id];
  if (!worker) worker = std::make_unique<torch_rpc::WorkerInfo>(text("worker", id), id);
  return *worker;
}

}  // namespace trireme::remote
