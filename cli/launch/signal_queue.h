#pragma once
// What reaches the launcher's poll loop from outside it: signals, and notes of other threads.

#include <signal.h>

#include <mutex>
#include <string>
#include <vector>

namespace trireme::cli {

/// Receives the launcher's signals as bytes of a descriptor instead of handlers; blocks them while it lives.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  int fd() const { return fd_; }
  /// The next signal, 0 when there is none. Does not wait.
  int next();
  int sender() const { return sender_; }  ///< of the last one: a process id; 0: the kernel, or not known

 private:
  sigset_t before_;
  int fd_ = -1;
  int sender_ = 0;
};

/// What other threads have to say, for the one that owns the screen. Thread-safe.
class Notes {
 public:
  void add(const std::string& note);
  std::vector<std::string> take();

 private:
  std::mutex mutex_;
  std::vector<std::string> notes_;
};

}  // namespace trireme::cli
