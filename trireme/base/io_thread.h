#pragma once
// One thread that runs tasks in order: reads or writes that continue concurrently with computation. The
// submitter of a task waits for it and gets its exception. The thread belongs to the object: its destructor
// runs the remaining tasks, and joins it. There are no deadlines, as a file system that hangs cannot be
// interrupted: other ranks name the rank that waits. Thread-safe.

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

  /// get() of the result waits for `work`, and throws its exception.
  std::future<void> start(std::function<void()> work);

 private:
  void run();

  const std::string name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> waiting_;  ///< this and later members: under the mutex
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace trireme
