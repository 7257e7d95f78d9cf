#pragma once
// Transport of a channel: bytes both ways, without blocking. The kinds are a socket, TLS over a socket, and
// shared memory next to a socket. One thread.

#include <sys/uio.h>

#include <span>
#include <string>

namespace trireme::wire {

enum class Flow : std::uint8_t {
  kMoved,   ///< some bytes
  kNotNow,  ///< the descriptor will have an event
  kEnded,   ///< the peer sends nothing more
  kFailed,  ///< see failure()
  kBroken,  ///< the peer has violated the protocol; see failure()
};

struct Moved {
  Flow flow = Flow::kNotNow;
  std::size_t bytes = 0;
};

class Stream {
 public:
  virtual ~Stream() = default;
  /// The descriptor to watch for input and output.
  virtual int fd() const = 0;
  virtual Moved read(std::span<const iovec> parts) = 0;
  virtual Moved write(std::span<const iovec> parts) = 0;
  /// Whether it has taken bytes that have not gone: then they go with flush(), when the descriptor is ready.
  virtual bool has_output() const = 0;
  virtual Flow flush() = 0;
  /// Whether read() gives something without the descriptor's saying so.
  virtual bool has_input() = 0;
  /// The caller waits for the descriptor, which has to have events from now on. True when has_input().
  virtual bool arm() = 0;
  /// The descriptor is readable.
  virtual void notice() = 0;
  /// Whether "readable" may mean room for output, and "writable" means nothing.
  virtual bool tells_room_by_input() const = 0;
  /// Whether to watch for input even while no reader wants it.
  virtual bool watched_while_paused() const = 0;
  virtual std::string failure() const = 0;
};

}  // namespace trireme::wire
