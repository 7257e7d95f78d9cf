#pragma once
// Stands before an HTTP server as a member of its cluster that hangs: it passes on some requests and their
// answers, then takes one and answers nothing. That one reaches the server at once, or late, when the test
// says so. A thread of its own, until the end of the test.

#include <cstdint>
#include <string>
#include <thread>

namespace trireme::test {

class Relay {
 public:
  enum class Passes : std::uint8_t { kAtOnce, kWhenTold };
  Relay(int to_port, int num_answered, Passes passes);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  int port() const { return port_; }
  /// Waits until whoever asked has given up, then passes on the request that hangs; the answer.
  std::string pass();

 private:
  void take();
  std::string answer_to(const std::string& request) const;

  const int to_port_, num_answered_;
  const Passes passes_;
  int listens_ = -1, port_ = 0;
  std::string request_;
  std::thread thread_;
};

}  // namespace trireme::test
