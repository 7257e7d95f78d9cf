#pragma once
// RRef<T>: a T that is on one worker, its owner, and that others refer to. It may be sent in arguments and
// results. It is destroyed with its last reference, even when messages were lost or came twice
// (internal/reference_table.h). An owner that has ended is an error of every use, which names it. Copies
// share one reference. Thread-safe.
//
//   RRef<Shard> shard = agent->remote("w1", rpc::function<"make_shard", &make_shard>, 3);
//   at::Tensor y = shard.rpc_sync<&Shard::forward>(x);
//   at::Tensor w = weight.to_here();

#include <memory>
#include <string>
#include <typeinfo>
#include <utility>

#include "trireme/rpc/parcels.h"

namespace trireme::rpc {

namespace internal {

/// On a thread that runs functions of an agent: which one.
class AgentScope {
 public:
  explicit AgentScope(AgentCore& core);
  ~AgentScope();
  AgentScope(const AgentScope&) = delete;
  AgentScope& operator=(const AgentScope&) = delete;
  /// Null on other threads.
  static AgentCore* current();

 private:
  AgentCore* const outer_;
};

/// The value as a T. Throws the error of the call, and InvalidArgument when it is no T.
std::shared_ptr<void> checked(const AnyValue& value, const std::type_info& type);
[[noreturn]] void throw_gone(const AgentCore& core, const RefId& id);

}  // namespace internal

template <class T>
class RRef {
 public:
  /// The type of the referenced value.
  using Value = T;

  /// Refers to nothing.
  RRef() = default;
  explicit RRef(std::shared_ptr<RefHandle> handle) : handle_(std::move(handle)) {}

  explicit operator bool() const { return handle_ != nullptr; }
  bool operator==(const RRef& other) const {
    return handle_ == other.handle_ || (handle_ && other.handle_ && handle_->id() == other.handle_->id());
  }
  /// Throws InvalidArgument when it refers to nothing; so do the others.
  WorkerId owner() const { return handle().id().owner; }
  bool is_owner() const { return owner() == handle().core().self(); }

  /// On the owner: the value itself, which others may use at the same time. Waits until it is there. Throws
  /// InvalidArgument anywhere else, and the exception of its function.
  std::shared_ptr<T> local_value() const {
    return std::static_pointer_cast<T>(internal::checked(local_future().get(), typeid(T)));
  }
  Future<AnyValue> local_future() const {
    require(is_owner(), "the value of this reference is on worker '", handle().core().name_of(owner()),
            "', not here: use to_here(), or call a function there");
    const auto value = handle().core().value_of(handle().id());
    if (!value) internal::throw_gone(handle().core(), handle().id());
    return value->future();
  }

  /// A copy of the value, from any worker. Throws the exception of its function, CommError when the owner has
  /// ended, DeadlineError.
  T to_here(const CallOptions& options = {}) const { return to_here_async(options).get(); }
  Future<T> to_here_async(const CallOptions& options = {}) const;

  /// Calls a member function of the value, or a function whose first argument is this reference, on the
  /// owner: `shard.rpc_sync<&Shard::forward>(x)`. CallOptions may come first. As the calls of an Agent.
  template <auto function, class... Args>
  auto rpc_sync(const Args&... args) const {
    return rpc_async<function>(args...).get();
  }
  template <auto function, class... Args>
  auto rpc_sync(const CallOptions& options, const Args&... args) const {
    return rpc_async<function>(options, args...).get();
  }
  template <auto function, class... Args>
  auto rpc_async(const Args&... args) const;
  template <auto function, class... Args>
  auto rpc_async(const CallOptions& options, const Args&... args) const;
  template <auto function, class... Args>
  auto remote(const Args&... args) const;
  template <auto function, class... Args>
  auto remote(const CallOptions& options, const Args&... args) const;

  const std::shared_ptr<RefHandle>& shared_handle() const { return handle_; }

 private:
  const RefHandle& handle() const {
    require(handle_ != nullptr, "this RRef refers to nothing");
    return *handle_;
  }

  std::shared_ptr<RefHandle> handle_;
};

}  // namespace trireme::rpc

template <class T>
struct trireme::wire::Field<trireme::rpc::RRef<T>> {
  static void write(FieldWriter& writer, const rpc::RRef<T>& value) {
    auto& exchange = rpc::Exchange::current();
    writer.write(static_cast<bool>(value));
    if (!value) return;
    require(value.shared_handle()->shared_core().get() == &exchange.core,
            "a reference of another agent of this process cannot be sent by this one");
    exchange.written->push_back({value.shared_handle()->id(), exchange.core.self()});
  }
  static void read(FieldReader& reader, rpc::RRef<T>& value) {
    auto& exchange = rpc::Exchange::current();
    bool there = false;
    reader.read(there);
    value = {};
    if (!there || !reader.valid()) return;
    if (exchange.num_read >= exchange.read->size()) return reader.fail();
    value = rpc::RRef<T>((*exchange.read)[exchange.num_read++]);
  }
};
