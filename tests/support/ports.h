#pragma once
// TCP ports of 127.0.0.1 for tests. No test has a fixed port, so that tests can run concurrently. The ports
// are none of those that the kernel gives to outgoing connections. They differ between calls and processes,
// so a free port stays free until the test's own program listens there.

namespace trireme::test {

/// Listens on a free port while the object exists.
class TakenPort {
 public:
  TakenPort();
  ~TakenPort();
  TakenPort(const TakenPort&) = delete;
  TakenPort& operator=(const TakenPort&) = delete;
  int number() const { return number_; }

 private:
  int fd_ = -1;
  int number_ = 0;
};

/// A port on which no process listens at this moment.
int free_port();

}  // namespace trireme::test
