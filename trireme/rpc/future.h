#pragma once
// A value that is still to come, or the error that comes instead. Copies are the same future. Thread-safe.
//
//   Future<at::Tensor> y = agent->rpc_async("w1", forward, x);
//   Future<double> loss = y.then([](const at::Tensor& y) { return y.sum().item<double>(); });
//   auto all = when_all(futures).get();

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/rpc/worker_pool.h"

namespace trireme::rpc {

/// The value of a Future<void>, where a value is needed.
struct Nothing {
  bool operator==(const Nothing&) const = default;
  template <class Self>
  static auto fields(Self&) {
    return std::tie();
  }
};

namespace internal {

template <class T>
using Stored = std::conditional_t<std::is_void_v<T>, Nothing, T>;

template <class T>
struct FutureState {
  explicit FutureState(std::shared_ptr<WorkerPool> runner) : pool(std::move(runner)) {}

  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Stored<T>> value;
  std::exception_ptr error;
  std::vector<std::function<void()>> followers;
  const std::shared_ptr<WorkerPool> pool;  ///< runs the followers; null: the completing thread

  bool done() const { return value.has_value() || error != nullptr; }

  /// False when it was complete before.
  bool complete(std::optional<Stored<T>> result, std::exception_ptr failure) {
    std::vector<std::function<void()>> run;
    {
      const std::lock_guard lock(mutex);
      if (done()) return false;
      value = std::move(result);
      error = std::move(failure);
      run.swap(followers);
    }
    changed.notify_all();
    for (auto& each : run) follow(std::move(each));
    return true;
  }

  void when_done(std::function<void()> follower) {
    {
      const std::lock_guard lock(mutex);
      if (!done()) {
        followers.push_back(std::move(follower));
        return;
      }
    }
    follow(std::move(follower));
  }

  void follow(std::function<void()> follower) {
    if (pool) return pool->submit(std::move(follower));
    follower();
  }
};

std::exception_ptr nobody_answers();

template <class T>
void complete_unless_done(FutureState<T>& state) {
  {
    const std::lock_guard lock(state.mutex);
    if (state.done()) return;
  }
  state.complete(std::nullopt, nobody_answers());
}

}  // namespace internal

template <class T>
class Promise;

/// A T, or void, that is still to come.
template <class T>
class Future {
 public:
  /// The type of the future's value.
  using Value = T;
  /// The stored type: of void, an empty value.
  using Stored = internal::Stored<T>;
  /// The state that copies of a future share with its promise.
  using State = internal::FutureState<T>;

  explicit Future(std::shared_ptr<State> state) : state_(std::move(state)) {}

  bool is_done() const { return wait_for(0); }
  /// Whether it is complete, after at most so long.
  bool wait_for(double seconds) const {
    std::unique_lock lock(state_->mutex);
    if (state_->done() || seconds <= 0) return state_->done();
    const BlockedScope blocked;
    return state_->changed.wait_for(lock, std::chrono::duration<double>(seconds),
                                    [&] { return state_->done(); });
  }
  /// Waits. Throws the error of a failed call. A thread of a pool is replaced by another one meanwhile.
  T get() const {
    std::unique_lock lock(state_->mutex);
    if (!state_->done()) {
      const BlockedScope blocked;
      state_->changed.wait(lock, [&] { return state_->done(); });
    }
    if (state_->error) std::rethrow_exception(state_->error);
    if constexpr (!std::is_void_v<T>) return *state_->value;
  }

  /// Calls `next` with the value, when it is there, on a thread of the agent's pool; an error skips it. The
  /// returned future has its result or exception; a CommError, when the agent ends before.
  template <class Next>
  auto then(Next next) const {
    using Result = decltype(apply(next));
    const Promise<Result> result(state_->pool);
    when_done([self = *this, result, next = std::move(next)]() mutable {
      if (self.state_->error) {
        result.fail(self.state_->error);
        return;
      }
      try {
        if constexpr (std::is_void_v<Result>) {
          self.apply(next);
          result.set();
        } else {
          result.set(self.apply(next));
        }
      } catch (...) {
        result.fail(std::current_exception());
      }
    });
    return result.future();
  }

  /// Runs when it is complete, one way or the other: at once, if it is.
  void when_done(std::function<void()> follower) const { state_->when_done(std::move(follower)); }
  /// Of one that is complete: its error, or null.
  std::exception_ptr error() const {
    const std::lock_guard lock(state_->mutex);
    return state_->error;
  }
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  template <class Next>
  auto apply(Next& next) const {
    if constexpr (std::is_void_v<T>) {
      return next();
    } else {
      return next(std::as_const(*state_->value));
    }
  }

  std::shared_ptr<State> state_;
};

/// The other end of a future. When its last copy is destroyed without a value, the future gets a CommError:
/// no wait is endless, and followers are released.
template <class T>
class Promise {
 public:
  explicit Promise(std::shared_ptr<WorkerPool> pool = nullptr)
      : owner_(std::make_shared<Owner>(std::make_shared<internal::FutureState<T>>(std::move(pool)))) {}
  Future<T> future() const { return Future<T>(owner_->state); }
  /// The first of them counts; false for any later one.
  bool set(internal::Stored<T> value) const { return owner_->state->complete(std::move(value), nullptr); }
  bool set() const requires std::is_void_v<T> { return owner_->state->complete(Nothing{}, nullptr); }
  bool fail(std::exception_ptr error) const {
    return owner_->state->complete(std::nullopt, std::move(error));
  }

 private:
  struct Owner {
    explicit Owner(std::shared_ptr<internal::FutureState<T>> of) : state(std::move(of)) {}
    ~Owner() { internal::complete_unless_done(*state); }
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;
    const std::shared_ptr<internal::FutureState<T>> state;
  };
  std::shared_ptr<Owner> owner_;
};

/// All values in the order of the futures, or the error of the first of them that has one; complete when all
/// are.
template <class T>
Future<std::vector<internal::Stored<T>>> when_all(const std::vector<Future<T>>& futures) {
  using Values = std::vector<internal::Stored<T>>;
  const Promise<Values> promise(futures.empty() ? nullptr : futures.front().state()->pool);
  // One list for all that share it: each of many futures has a follower.
  const auto finish = [promise, all = std::make_shared<const std::vector<Future<T>>>(futures)] {
    Values values;
    for (const auto& each : *all) {
      if (const auto error = each.error()) {
        promise.fail(error);
        return;
      }
      values.push_back(*each.state()->value);
    }
    promise.set(std::move(values));
  };
  if (futures.empty()) finish();
  const auto left = std::make_shared<std::atomic<std::size_t>>(futures.size());
  for (const auto& each : futures) {
    each.when_done([left, finish] {
      if (left->fetch_sub(1) == 1) finish();
    });
  }
  return promise.future();
}

/// The same of futures of different types: a tuple.
template <class First, class... Rest>
Future<std::tuple<internal::Stored<First>, internal::Stored<Rest>...>> when_all(const Future<First>& first,
                                                                                const Future<Rest>&... rest) {
  using Values = std::tuple<internal::Stored<First>, internal::Stored<Rest>...>;
  const Promise<Values> promise(first.state()->pool);
  const auto left = std::make_shared<std::atomic<std::size_t>>(1 + sizeof...(rest));
  const auto finish = [promise, left, first, rest...] {
    if (left->fetch_sub(1) != 1) return;
    std::exception_ptr error = first.error();
    ((error = error ? error : rest.error()), ...);
    if (error) {
      promise.fail(error);
    } else {
      promise.set(Values(*first.state()->value, *rest.state()->value...));
    }
  };
  first.when_done(finish);
  (rest.when_done(finish), ...);
  return promise.future();
}

}  // namespace trireme::rpc
