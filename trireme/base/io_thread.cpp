#include "trireme/base/io_thread.h"

#include <pthread.h>

#include <utility>

namespace trireme {

IoThread::IoThread(std::string name) : name_(std::move(name)), thread_([this] { run(); }) {}

IoThread::~IoThread() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::future<void> IoThread::start(std::function<void()> work) {
  std::packaged_task<void()> task(std::move(work));
  std::future<void> done = task.get_future();
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(task));
  }
  changed_.notify_all();
  return done;
}

void IoThread::run() {
  ::pthread_setname_np(::pthread_self(), name_.c_str());
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    std::packaged_task<void()> next = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    next();
    next = {};  // its captured objects may be large
    lock.lock();
  }
}

}  // namespace trireme
