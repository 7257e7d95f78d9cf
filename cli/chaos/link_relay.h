#pragma once
// A relay between clients and a server on this host, both ways. Its links can fail while the server runs. Cut
// links close, and no process listens. Stalled links stay open, and transfer nothing. Uses Unix sockets
// without files, where the kernel confirms that both ends belong to this user. Has its own thread.

#include <atomic>
#include <cstdint>
#include <list>
#include <string>
#include <thread>

#include "trireme/wire/node.h"
#include "trireme/wire/socket.h"

namespace trireme::cli {

class LinkRelay {
 public:
  /// Listens at `address`; `target` is where the server listens. Both are "unix:@NAME".
  LinkRelay(wire::Address address, wire::Address target);
  ~LinkRelay();
  LinkRelay(const LinkRelay&) = delete;
  LinkRelay& operator=(const LinkRelay&) = delete;

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

  const wire::Address address_, target_;
  wire::Socket listens_;
  std::list<Link> links_;
  std::atomic<State> state_ = State::kPassing;
  std::atomic<bool> stops_ = false;
  std::thread thread_;
};

}  // namespace trireme::cli
