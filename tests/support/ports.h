#pragma once
// TCP ports of 127.0.0.1 for tests: none is written down in a test, so that tests can run side by side. They
// are none of those that the kernel gives to outgoing connections, and another one each time and in each
// process: one that was found free stays so until the test's own program listens there.

namespace trireme::test {

/// Listens on a free port for as long as it lives.
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

/// A port that nobody listens on at this moment.
int free_port();

}  // namespace trireme::test
