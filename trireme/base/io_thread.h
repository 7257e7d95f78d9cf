#pragma once
// One thread that does what it is given, in order: reads or writes that continue concurrently with
// computation. Who has given something waits for it and gets its exception. The thread belongs to the object:
// its destructor has it do what is left, and joins it. Nothing here has a deadline, as a file system that
// hangs answers nobody: other ranks name the rank that waits. Thread-safe.

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>

namespace trireme {

class IoThread {
 public:
  /// `name`: of the thread, at most 15 characters.
  explicit IoThread(std::string name);
  ~IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  /// get() of the result waits for `work`, and throws what it has thrown.
  std::future<void> start(std::function<void()> work);

 private:
  void run();

  const std::string name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> waiting_;  ///< this and what follows: under the mutex
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace trireme
