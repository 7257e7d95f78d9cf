#pragma once
// Stands before a server on this host and passes on what comes, both ways, so that its links can fail while
// it lives: cut, they close and nobody listens; stalled, they stay open and say nothing. A thread of its own.

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <thread>

#include "trireme/wire/socket.h"

namespace trireme::cli {

class LinkRelay {
 public:
  /// `target` is asked for the server's port at each connection; 0: there is none yet.
  explicit LinkRelay(std::function<int()> target);
  ~LinkRelay();
  LinkRelay(const LinkRelay&) = delete;
  LinkRelay& operator=(const LinkRelay&) = delete;

  int port() const { return port_; }
  enum class State : std::uint8_t { kPassing, kCut, kStalled };
  void set(State state) { state_ = state; }

 private:
  struct Way {
    int from, to;
    std::string waiting;
  };
  struct Link {
    wire::Socket one, other;
    Way there, back;
    bool has_ended = false;
  };

  void listen();
  void serve();
  void accept();
  void pass(Link& link);

  const std::function<int()> target_;
  int port_ = 0;
  wire::Socket listens_;
  std::list<Link> links_;
  std::atomic<State> state_ = State::kPassing;
  std::atomic<bool> stops_ = false;
  std::thread thread_;
};

}  // namespace trireme::cli
