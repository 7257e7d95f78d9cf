#include "trireme/rpc/worker_pool.h"

#include <pthread.h>

#include <utility>

namespace trireme::rpc {
namespace {

thread_local WorkerPool* pool_of_this_thread = nullptr;
thread_local int num_scopes = 0;

}  // namespace

WorkerPool::~WorkerPool() { close(); }

void WorkerPool::submit(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  queue_.push_back(std::move(work));
  dispatch();
}

void WorkerPool::dispatch() {
  while (!queue_.empty() && !closed_ && num_busy_ - num_blocked_ < options_.num_threads) {
    const bool is_new = idle_.empty();
    if (is_new && threads_.size() >= options_.max_threads) return;
    Thread& thread = is_new ? threads_.emplace_back() : *idle_.back();
    if (!is_new) idle_.pop_back();
    thread.work = std::move(queue_.front());
    thread.told = true;
    queue_.pop_front();
    ++num_busy_;
    if (is_new) {
      thread.thread = std::thread([this, &thread] { serve(thread); });
      pthread_setname_np(thread.thread.native_handle(), "trireme-rpc-run");
    } else {
      thread.wake.notify_one();
    }
  }
}

void WorkerPool::serve(Thread& self) {
  pool_of_this_thread = this;
  if (options_.on_thread_start) options_.on_thread_start();
  std::unique_lock lock(mutex_);
  while (true) {
    self.wake.wait(lock, [&] { return self.told || closed_; });
    if (!self.told) return;
    auto work = std::exchange(self.work, {});
    self.told = false;
    lock.unlock();
    work();
    work = {};
    lock.lock();
    --num_busy_;
    idle_.push_back(&self);
    dispatch();
  }
}

void WorkerPool::close() {
  std::deque<std::function<void()>> dropped;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    dropped.swap(queue_);
    for (Thread& each : threads_) each.wake.notify_one();
  }
  dropped.clear();
  // No thread is added any more.
  for (Thread& each : threads_) {
    if (each.thread.joinable()) each.thread.join();
  }
}

std::size_t WorkerPool::num_unfinished() const {
  const std::lock_guard lock(mutex_);
  return queue_.size() + num_busy_;
}

void WorkerPool::enter_blocked() {
  const std::lock_guard lock(mutex_);
  ++num_blocked_;
  dispatch();
}

void WorkerPool::leave_blocked() {
  const std::lock_guard lock(mutex_);
  --num_blocked_;
}

BlockedScope::BlockedScope() : pool_(num_scopes++ == 0 ? pool_of_this_thread : nullptr) {
  if (pool_ != nullptr) pool_->enter_blocked();
}
BlockedScope::~BlockedScope() {
  --num_scopes;
  if (pool_ != nullptr) pool_->leave_blocked();
}

}  // namespace trireme::rpc
