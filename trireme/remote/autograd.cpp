#include "trireme/remote/autograd.h"

#include <ATen/Parallel.h>
#include <torch/csrc/distributed/autograd/autograd.h>
#include <torch/csrc/distributed/autograd/utils.h>

#include <cstring>
#include <limits>
#include <mutex>

#include "trireme/base/error.h"
#include "trireme/remote/internal/tensor_collector.h"
#include "trireme/remote/internal/torch_agent.h"
#include "trireme/remote/tensor_field.h"
#include "trireme/wire/fields.h"
#include "trireme/wire/secret.h"

namespace trireme::remote {
namespace {

namespace autograd = torch::distributed::autograd;
using Container = autograd::DistAutogradContainer;

/// Metadata of a call or an answer in a context.
struct Metadata {
  ContextId context = 0;
  std::int64_t message = 0;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.context, self.message);
  }
};

std::optional<Metadata> metadata_of(const rpc::Annex& annex) {
  return annex.empty() ? std::nullopt : wire::decode<Metadata>(annex);
}

/// Adds the edges of calls to the graphs of contexts.
class AutogradHooks final : public rpc::CallHooks {
 public:
  void begin_write() override { TensorCollector::here().begin(); }

  rpc::Annex end_write(rpc::WorkerId to, const rpc::Annex* request) override {
    auto tensors = TensorCollector::here().end();
    const auto asked = request == nullptr ? std::nullopt : metadata_of(*request);
    if (request != nullptr && !asked) return {};
    const ContextId id = asked ? asked->context : Container::currentContextId();
    if (id < 0) return {};
    auto& container = Container::getInstance();
    require(asked || is_there(id), "this thread is in context ", id,
            " of a group that this process has left: let the Context go before");
    const auto context = container.retrieveContext(id);
    const Metadata metadata{id, container.newAutogradMessageId()};
    const autograd::AutogradMetadata known(metadata.context, metadata.message);
    if (!tensors.empty()) autograd::addSendRpcBackward(context, known, tensors);
    if (request == nullptr) context->addKnownWorkerId(short_id(to));
    return wire::encode(metadata);
  }

  void begin_read() override { TensorCollector::here().begin(); }

  void end_read(rpc::WorkerId from, const rpc::Annex& annex) override {
    auto tensors = TensorCollector::here().end();
    const auto metadata = metadata_of(annex);
    if (!metadata) return;
    auto& container = Container::getInstance();
    constexpr int kBitsOfNumber = 48;
    const bool own = metadata->context >> kBitsOfNumber == container.getWorkerId();
    if (own && !is_there(metadata->context)) return;  // the answer came after its context had ended
    TorchAgent::note(metadata->context);
    for (auto& each : tensors) each.requires_grad_(true);
    autograd::addRecvRpcBackward({metadata->context, metadata->message}, tensors, short_id(from), {});
  }

  void begin_run(const rpc::Annex& annex) override {
    if (const auto metadata = metadata_of(annex)) {
      TorchAgent::note(metadata->context);
      Container::getInstance().getOrCreateContext(metadata->context);
      Container::forceCurrentContextId(metadata->context);
    }
  }
  void end_run() override { Container::forceCurrentContextId(-1); }

 private:
  static torch_rpc::worker_id_t short_id(rpc::WorkerId worker) {
    require(worker <= static_cast<rpc::WorkerId>(std::numeric_limits<torch_rpc::worker_id_t>::max()),
            "worker ", worker,
            " cannot take part in distributed autograd, which counts to 32767: start the "
            "group again, under another name");
    return static_cast<torch_rpc::worker_id_t>(worker);
  }
  static bool is_there(ContextId context) {
    try {
      Container::getInstance().isValidContext(context);
      return true;
    } catch (const c10::Error&) {
      return false;
    }
  }
};

/// The one agent of this process that has autograd.
struct Current {
  std::mutex mutex;
  std::weak_ptr<rpc::Agent> agent;
  std::shared_ptr<TorchAgent> torch_agent;
  std::uint64_t process = 0;  ///< a random number; 0: none yet
  std::int64_t number = 0;    ///< prefix of this process's context ids, in all its groups; 0: none yet
};

Current& current() {
  static Current* const one = new Current;  // libtorch's part of it is never destroyed either
  return *one;
}

/// A number that no other process of the group has. libtorch keeps the first number for good. Each process
/// begins at a random one, so in later groups its number is rarely taken.
std::int64_t claim_number(const rpc::AgentOptions& options, Current& current) {
  constexpr std::int64_t kMost = std::numeric_limits<torch_rpc::worker_id_t>::max();
  if (current.process == 0)
    std::memcpy(&current.process, wire::random_nonce().data(), sizeof current.process);
  const std::string mine = text(current.process);
  const auto begin = static_cast<std::int64_t>(current.process % static_cast<std::uint64_t>(kMost));
  for (std::int64_t i = 0; i < kMost; ++i) {
    const std::int64_t number = current.number > 0 ? current.number : 1 + (begin + i) % kMost;
    const std::string place = text(options.group, "/autograd/", number);
    if (options.directory->replace(place, "", mine) == mine) return number;
    require(current.number == 0, "this process numbers its contexts ", number,
            " since it joined its first group, and in the group '", options.group,
            "' another process does: join it from a new process, or with rpc::Agent::join()");
  }
  throw InvalidArgument(text("all ", kMost, " numbers of processes with autograd in the group '",
                             options.group, "' have been given: start the group again, under another name"));
}

/// Forgets the contexts of groups that this process has left.
void forget_contexts() {
  for (const ContextId context : TorchAgent::noted()) {
    TorchAgent::forget(context);
    Container::getInstance().releaseContextIfPresent(context);
  }
}

void run_backward(ContextId context, const std::vector<at::Tensor>& roots, bool retain_graph) {
  const rpc::BlockedScope blocked;
  try {
    try {
      autograd::DistEngine::getInstance().execute(context, roots, retain_graph);
    } catch (...) {
      std::rethrow_exception(TorchAgent::cause_of_failure(context, std::current_exception()));
    }
  } catch (const CommError& error) {
    throw CommError(text("the backward pass of context ", context, " cannot continue: ", error.what()));
  }
}

void backward_there(ContextId context, const rpc::RRef<at::Tensor>& root, bool retain_graph) {
  run_backward(context, {*root.local_value()}, retain_graph);
}
constexpr auto& kBackwardThere = rpc::function<"trireme.backward", &backward_there>;

}  // namespace

std::shared_ptr<rpc::Agent> join(rpc::AgentOptions options) {
  Current& current = remote::current();
  const std::lock_guard lock(current.mutex);
  require(current.agent.expired(),
          "this process has a worker with autograd; libtorch keeps one: let it leave and "
          "drop it before another joins, or join with rpc::Agent::join()");
  require(options.directory != nullptr, "worker '", options.name, "' has no directory to find the others in");
  const std::int64_t number = claim_number(options, current);
  if (current.number == 0) Container::init(number);
  current.number = number;
  forget_contexts();
  const auto torch_agent = std::make_shared<TorchAgent>(options.timeout_s);
  if (const auto before = std::exchange(current.torch_agent, torch_agent)) {
    torch_rpc::RpcAgent::setCurrentRpcAgent(nullptr);
    before->shutdown();
  }
  torch_rpc::RpcAgent::setCurrentRpcAgent(torch_agent);
  torch_agent->start();
  options.hooks = std::make_shared<AutogradHooks>();
  if (!options.on_thread_start) options.on_thread_start = [] { at::init_num_threads(); };
  auto agent = rpc::Agent::join(std::move(options));
  torch_agent->set_core(agent->core());
  current.agent = agent;
  return agent;
}

Context::Context(const rpc::Agent& agent) : core_(agent.core()) {
  require(dynamic_cast<AutogradHooks*>(core_->hooks()) != nullptr, "worker '", agent.name(),
          "' has no autograd: join with remote::join()");
  require(Container::currentContextId() < 0, "this thread is in context ", Container::currentContextId(),
          " already: contexts cannot be nested");
  id_ = Container::getInstance().newContext()->contextId();
  TorchAgent::note(id_);
}

Context::~Context() {
  TorchAgent::forget(id_);
  try {
    Container::getInstance().releaseContext(id_);
  } catch (const std::exception&) {  // a worker that has ended has no context to release
  }
  Container::forceCurrentContextId(-1);
}

void Context::backward(const std::vector<at::Tensor>& roots, bool retain_graph) {
  run_backward(id_, roots, retain_graph);
}

void Context::backward(const rpc::RRef<at::Tensor>& root, bool retain_graph) {
  const rpc::Agent agent(core_, rpc::Agent::Borrowed{});
  agent.rpc_sync(root.owner(), kBackwardThere, id_, root, retain_graph);
}

std::vector<std::pair<at::Tensor, at::Tensor>> Context::gradients() const { return gradients_of(id_); }

ContextId current_context() { return Container::currentContextId(); }

std::vector<std::pair<at::Tensor, at::Tensor>> gradients_of(ContextId context) {
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients;
  try {
    for (const auto& each : Container::getInstance().retrieveContext(context)->getGradients()) {
      gradients.emplace_back(each.key(), each.value());
    }
  } catch (const c10::Error& error) {
    throw InvalidArgument(
        text("nothing is known here of context ", context, ": ", error.what_without_backtrace()));
  }
  return gradients;
}

std::size_t num_contexts() { return Container::getInstance().numAutogradContexts(); }

}  // namespace trireme::remote
