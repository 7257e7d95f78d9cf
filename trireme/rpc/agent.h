#pragma once
// A worker that calls functions of others and serves its own: one name in a group, a thread for
// communication, and a pool that runs the requested functions. Several may be in one process. Thread-safe.
//
//   auto agent = rpc::Agent::join({.name = "trainer", .directory = directory});
//   double sum = agent->rpc_sync<&add>("w1", 1.0, 2.0);
//   Future<double> later = agent->rpc_async("w1", rpc::function<"add", &add>, 1.0, 2.0);
//   RRef<Shard> shard = agent->remote<&make_shard>("w1");
//   agent->leave();
//
// rpc::function gives a function a name that programs of other sources can call it by; without it the
// function is its own name.
//
// Calls of one thread to one worker begin there in their order; their ends are not ordered. A call is run
// once or, when a worker has ended, it is unknown whether it ran. Errors of a call are exceptions of its
// future: the exception of the function (remote_error.h), CommError that names a worker that has ended or is
// not there, DeadlineError, InvalidArgument. Tensors and buffers are sent without a copy: do not change them
// before the answer is there.

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/rpc/function.h"
#include "trireme/rpc/options.h"
#include "trireme/rpc/reference.h"

namespace trireme::rpc {

/// The worker to call: by name, or by id as RRef::owner() has it.
class Callee {
 public:
  Callee(const char* name) : name_(name) {}             // NOLINT: a name is one
  Callee(std::string name) : name_(std::move(name)) {}  // NOLINT
  Callee(WorkerId worker) : worker_(worker) {}          // NOLINT
  bool is_name() const { return worker_ == kNobody; }
  /// The worker's number; a name is looked up in the group, which waits for at most so long until a worker
  /// has it.
  WorkerId in(AgentCore& core, double timeout_s) const {
    return worker_ == kNobody ? core.find(name_, timeout_s) : worker_;
  }

 private:
  std::string name_;
  WorkerId worker_ = kNobody;
};

namespace internal {

/// Whether those arguments fit; where they do not, the one error of that call.
template <class Signature, class... Args>
struct Takes;
template <class R, class... Params, class... Args>
struct Takes<R(Params...), Args...> {
  static constexpr bool kAsMany = sizeof...(Params) == sizeof...(Args);
  static consteval bool value() {
    static_assert(kAsMany, "the function takes another number of arguments");
    if constexpr (!kAsMany) {
      return false;
    } else {
      constexpr bool kConvert = (std::is_convertible_v<const Args&, const Params&> && ...);
      static_assert(kConvert, "the function takes arguments of other types");
      return kConvert && (Sendable<Params> && ...);
    }
  }
};
template <class Signature, class... Args>
consteval bool takes() {
  return Takes<Signature, Args...>::value();
}

/// Whether the call may be made again, since its worker has ended and the options allow it.
bool may_try_again(const Callee& to, const CallOptions& options, const std::exception_ptr& error);

template <class R, class... Args>
void make_call(const std::shared_ptr<AgentCore>& core, const Callee& to, const CallOptions& options,
               const FunctionRow& function, const Promise<R>& promise, const Args&... args) {
  const WorkerId worker = to.in(*core, options.timeout_s);
  std::function<void()> again;
  if (options.tries > 1) {
    again = [core, to, options, &function, promise, kept = std::tuple<Args...>(args...)] {
      try {
        CallOptions left = options;
        --left.tries;
        std::apply([&](const auto&... each) { make_call<R>(core, to, left, function, promise, each...); },
                   kept);
      } catch (...) {
        promise.fail(std::current_exception());
      }
    };
  }
  core->call(
      worker, function, write_parcel(*core, worker, nullptr, args...), options, std::nullopt,
      [core, to, options, promise, again, &function](Answer&& answer) {
        if (answer.error) {
          const bool tries_again = may_try_again(to, options, answer.error);
          if (tries_again) return core->pool()->submit(again);
          promise.fail(std::move(answer.error));  // none but those that wait has it then
          return;
        }
        try {
          promise.set(read_parcel<Stored<R>>(*core, answer.from, answer.parcel, answer.references,
                                             [&] { return text("the result of '", function.name, "'"); }));
        } catch (...) {
          promise.fail(std::current_exception());
        }
      });
}

}  // namespace internal

class Agent {
 public:
  /// Joins the group. Throws InvalidArgument (a name that is taken, by which worker; options that cannot be),
  /// CommError (the directory does not answer, an address is taken).
  static std::shared_ptr<Agent> join(AgentOptions options) {
    return std::make_shared<Agent>(AgentCore::start(std::move(options)));
  }
  explicit Agent(std::shared_ptr<AgentCore> core) : core_(std::move(core)) {}
  /// Another's, which continues without this one.
  struct Borrowed {};
  Agent(std::shared_ptr<AgentCore> core, Borrowed) : core_(std::move(core)), is_borrowed_(true) {}
  /// Leaves as one that has died would, unless leave() was called.
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  const std::string& name() const { return core_->info().name; }
  WorkerId id() const { return core_->self(); }
  /// Waits until there is one. Throws CommError when there is none by then; 0: the agent's timeout.
  WorkerId find(const std::string& name, double timeout_s = 0) const { return core_->find(name, timeout_s); }

  /// Calls, and waits for the result.
  template <class Signature, class... Args>
  auto rpc_sync(const Callee& to, const Function<Signature>& function, const Args&... args) const {
    return rpc_async(to, CallOptions{}, function, args...).get();
  }
  template <class Signature, class... Args>
  auto rpc_sync(const Callee& to, const CallOptions& options, const Function<Signature>& function,
                const Args&... args) const {
    return rpc_async(to, options, function, args...).get();
  }
  /// Returns as soon as the call is on its way; waits where too much is (AgentOptions::max_waiting_bytes).
  template <class Signature, class... Args>
  auto rpc_async(const Callee& to, const Function<Signature>& function, const Args&... args) const {
    return rpc_async(to, CallOptions{}, function, args...);
  }
  template <class R, class... Params, class... Args>
  Future<R> rpc_async(const Callee& to, const CallOptions& options, const Function<R(Params...)>& function,
                      const Args&... args) const {
    constexpr bool kTakes = internal::takes<R(Params...), Args...>();
    static_assert(
        Sendable<internal::Stored<R>>,
        "the result of this function cannot be sent: use remote(), which keeps it there, or include "
        "trireme/remote/autograd.h for tensors");
    const Promise<R> promise(core_->pool());
    if constexpr (kTakes && Sendable<internal::Stored<R>>)
      internal::make_call<R>(core_, to, options, function.row(), promise,
                             static_cast<const Params&>(args)...);
    return promise.future();
  }
  /// Calls, and leaves the result on the callee. Returns at once; every use of the reference throws the
  /// function's exception.
  template <class Signature, class... Args>
  auto remote(const Callee& to, const Function<Signature>& function, const Args&... args) const {
    return remote(to, CallOptions{}, function, args...);
  }
  template <class R, class... Params, class... Args>
  auto remote(const Callee& to, const CallOptions& options, const Function<R(Params...)>& function,
              const Args&... args) const {
    const WorkerId worker = to.in(*core_, options.timeout_s);
    const auto handle = core_->make_reference(worker);
    if constexpr (internal::takes<R(Params...), Args...>())
      core_->call(worker, function.row(),
                  write_parcel(*core_, worker, nullptr, static_cast<const Params&>(args)...), options,
                  handle->id(), [](Answer&&) {});
    return RRef<typename internal::KeptAs<R>::Type>(handle);
  }

  /// The same for a function that is its own name: `agent->rpc_sync<&add>("w1", 1.0, 2.0)`. Both ends are
  /// built from one source. CallOptions may come after the worker.
  template <auto function, class... Args>
  auto rpc_sync(const Callee& to, const Args&... args) const {
    return rpc_async<function>(to, args...).get();
  }
  template <auto function, class... Args>
  auto rpc_sync(const Callee& to, const CallOptions& options, const Args&... args) const {
    return rpc_async<function>(to, options, args...).get();
  }
  template <auto function, class... Args>
  auto rpc_async(const Callee& to, const Args&... args) const {
    return rpc_async(to, CallOptions{}, internal::function_itself<function>, args...);
  }
  template <auto function, class... Args>
  auto rpc_async(const Callee& to, const CallOptions& options, const Args&... args) const {
    return rpc_async(to, options, internal::function_itself<function>, args...);
  }
  template <auto function, class... Args>
  auto remote(const Callee& to, const Args&... args) const {
    return remote(to, CallOptions{}, internal::function_itself<function>, args...);
  }
  template <auto function, class... Args>
  auto remote(const Callee& to, const CallOptions& options, const Args&... args) const {
    return remote(to, options, internal::function_itself<function>, args...);
  }

  /// A reference to a value of this worker.
  template <class T>
  RRef<T> share(std::shared_ptr<T> value) const {
    require(value != nullptr, "a null pointer cannot be shared");
    const auto handle = core_->make_reference(core_->self());
    core_->value_of(handle->id())->set({std::move(value), &typeid(T)});
    return RRef<T>(handle);
  }
  template <class T>
  RRef<T> share(T value) const {
    return share(std::make_shared<T>(std::move(value)));
  }
  /// Values of this worker that references refer to.
  std::size_t num_values() const { return core_->num_values(); }
  Statistics statistics() const { return core_->statistics(); }
  /// Of the connections; see wire::NodeLoop::counts().
  wire::ChannelCounts channel_counts() const { return core_->channel_counts(); }

  /// Waits until no call is pending, of its own or of others, and leaves; do not call anything afterwards.
  /// kWithAll: together with all workers of the group. None leaves before all have called this or have ended,
  /// however long they work. It detects workers that have ended or are frozen, and does not wait for them.
  /// Workers that have not joined yet (AgentOptions::num_workers) are waited for AgentOptions::timeout_s.
  /// `timeout_s`: a deadline in seconds for all of that; 0: none. Throws CommError that names the pending
  /// calls or workers; the agent stays usable then.
  enum class Leave { kAlone, kWithAll };
  void leave(Leave leave = Leave::kWithAll, double timeout_s = 0) {
    core_->leave(leave == Leave::kWithAll, timeout_s);
  }

  const std::shared_ptr<AgentCore>& core() const { return core_; }

 private:
  const std::shared_ptr<AgentCore> core_;
  const bool is_borrowed_ = false;
};

/// The agent whose function the calling thread runs. Throws InvalidArgument on other threads.
std::shared_ptr<Agent> this_agent();

namespace internal {

template <class T>
Future<T> copy_of(const RRef<T>& reference) {
  return reference.local_future().then(
      [](const AnyValue& value) { return T(*std::static_pointer_cast<T>(checked(value, typeid(T)))); });
}

/// One for each type, with a name for it.
template <class T>
inline const Function<T(RRef<T>)> copy_function{
    add<&copy_of<T>>("trireme.to_here " + readable(typeid(T).name()))};

}  // namespace internal

template <class T>
Future<T> RRef<T>::to_here_async(const CallOptions& options) const {
  static_assert(Sendable<T>, "a value of this type cannot be sent: call a function on its owner");
  const Agent agent(handle().shared_core(), Agent::Borrowed{});
  return agent.rpc_async(owner(), options, internal::copy_function<T>, *this);
}

template <class T>
template <auto function, class... Args>
auto RRef<T>::rpc_async(const Args&... args) const {
  return Agent(handle().shared_core(), Agent::Borrowed{}).rpc_async<function>(owner(), *this, args...);
}

template <class T>
template <auto function, class... Args>
auto RRef<T>::rpc_async(const CallOptions& options, const Args&... args) const {
  return Agent(handle().shared_core(), Agent::Borrowed{})
      .rpc_async<function>(owner(), options, *this, args...);
}

template <class T>
template <auto function, class... Args>
auto RRef<T>::remote(const Args&... args) const {
  return Agent(handle().shared_core(), Agent::Borrowed{}).remote<function>(owner(), *this, args...);
}

template <class T>
template <auto function, class... Args>
auto RRef<T>::remote(const CallOptions& options, const Args&... args) const {
  return Agent(handle().shared_core(), Agent::Borrowed{}).remote<function>(owner(), options, *this, args...);
}

}  // namespace trireme::rpc
