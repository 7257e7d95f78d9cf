#pragma once
// An HTTP relay that acts as a hung member of a server's cluster. It forwards some requests and their
// answers, then accepts one request and never answers it. That request reaches the server at once, or late,
// when the test says so. It runs in its own thread until the end of the test.

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
  /// Waits until the client has given up, then forwards the request that hangs. Returns the answer.
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
