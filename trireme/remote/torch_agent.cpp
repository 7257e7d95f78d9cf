#include "trireme/remote/internal/torch_agent.h"

#include <torch/csrc/distributed/rpc/request_callback_no_python.h>

#include <utility>

#include "trireme/base/error.h"
#include "trireme/remote/tensor_field.h"
#include "trireme/rpc/agent.h"

namespace trireme::remote {
namespace {

using torch_rpc::JitFuture;
using torch_rpc::Message;

/// A torch_rpc::Message as fields.
struct Carried {
  std::int64_t type = 0, id = 0;
  std::string payload;
  std::vector<at::Tensor> tensors;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.type, self.id, self.payload, self.tensors);
  }
};

Carried carried(Message& message) {
  return {.type = message.type(),
          .id = message.id(),
          .payload = std::string(message.payload().begin(), message.payload().end()),
          .tensors = message.tensors()};
}

c10::intrusive_ptr<Message> message_of(Carried carried) {
  return c10::make_intrusive<Message>(std::vector<char>(carried.payload.begin(), carried.payload.end()),
                                      std::move(carried.tensors),
                                      static_cast<torch_rpc::MessageType>(carried.type), carried.id);
}

c10::intrusive_ptr<JitFuture> new_future() { return c10::make_intrusive<JitFuture>(at::AnyClassType::get()); }

rpc::Future<Carried> serve_message(Carried request) {
  const auto agent = std::static_pointer_cast<TorchAgent>(torch_rpc::RpcAgent::getCurrentRpcAgent());
  const auto message = message_of(std::move(request));
  const rpc::Promise<Carried> promise;
  agent->serve(*message)->addCallback([promise](JitFuture& done) {
    try {
      if (done.hasError()) std::rethrow_exception(done.exception_ptr());
      const auto answer = done.value().toCustomClass<Message>();
      if (answer->type() == torch_rpc::MessageType::EXCEPTION) {
        throw rpc::RemoteError("c10::Error", std::string(answer->payload().begin(), answer->payload().end()));
      }
      promise.set(carried(*answer));
    } catch (...) {
      promise.fail(std::current_exception());
    }
  });
  return promise.future();
}

constexpr auto& kServeMessage = rpc::function<"trireme.autograd", &serve_message>;

}  // namespace

TorchAgent::TorchAgent(const std::string& name, torch_rpc::worker_id_t id, double timeout_s)
    : RpcAgent(torch_rpc::WorkerInfo(name, id), std::make_unique<torch_rpc::RequestCallbackNoPython>(),
               std::chrono::milliseconds(static_cast<std::int64_t>(timeout_s * 1000))),
      core_(core_told_.get_future()) {
  // Messages hold numbers and tensors alone.
  setTypeResolver(
      std::make_shared<torch_rpc::TypeResolver>([](const c10::QualifiedName& type) -> c10::StrongTypePtr {
        throw InternalError(text("a message of distributed autograd names the type ", type.qualifiedName()));
      }));
}
TorchAgent::~TorchAgent() {
  if (rpcAgentRunning_.load()) shutdown();
}

void TorchAgent::set_core(const std::shared_ptr<rpc::AgentCore>& core) { core_told_.set_value(core); }

c10::intrusive_ptr<JitFuture> TorchAgent::serve(Message& request) const { return (*cb_)(request, {}); }

c10::intrusive_ptr<JitFuture> TorchAgent::send(const torch_rpc::WorkerInfo& to,
                                               c10::intrusive_ptr<Message> message, float timeout_s,
                                               const torch_rpc::DeviceMap&) {
  auto future = new_future();
  const auto core = core_.get().lock();
  if (!core) {
    future->setError(std::make_exception_ptr(CommError("this worker has left its group")));
    return future;
  }
  const rpc::Agent agent(core, rpc::Agent::Borrowed{});
  try {
    const auto answer = agent.rpc_async(static_cast<rpc::WorkerId>(to.id_),
                                        rpc::CallOptions{.timeout_s = std::max(timeout_s, 0.0F)},
                                        kServeMessage, carried(*message));
    answer.when_done([answer, future] {
      if (const auto error = answer.error()) return future->setError(error);
      auto back = message_of(*answer.state()->value);
      auto storages = back->getStorages();
      future->markCompleted(at::IValue(std::move(back)), std::move(storages));
    });
  } catch (...) {
    future->setError(std::current_exception());
  }
  return future;
}

const torch_rpc::WorkerInfo& TorchAgent::getWorkerInfo(const std::string& name) const {
  throw InternalError(text("nobody asks for worker '", name, "' by its name"));
}

const torch_rpc::WorkerInfo& TorchAgent::getWorkerInfo(torch_rpc::worker_id_t id) const {
  const std::lock_guard lock(mutex_);
  auto& worker = workers_[id];
  if (!worker) worker = std::make_unique<torch_rpc::WorkerInfo>(text("worker", id), id);
  return *worker;
}

}  // namespace trireme::remote
