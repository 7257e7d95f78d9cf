#pragma once
// A connected socket as a stream, TCP or Unix.

#include "trireme/wire/internal/stream.h"
#include "trireme/wire/socket.h"

namespace trireme::wire {

class SocketStream final : public Stream {
 public:
  explicit SocketStream(Socket socket) : socket_(std::move(socket)) {}

  int fd() const override { return socket_.fd(); }
  Moved read(std::span<const iovec> parts) override;
  Moved write(std::span<const iovec> parts) override;
  bool has_output() const override { return false; }
  Flow flush() override { return Flow::kMoved; }
  bool has_input() override { return false; }
  bool arm() override { return false; }
  void notice() override {}
  bool tells_room_by_input() const override { return false; }
  bool watched_while_paused() const override { return false; }
  std::string failure() const override;

  /// For another stream over it.
  Socket release() { return std::move(socket_); }

 private:
  Socket socket_;
  int error_ = 0;
};

/// The result of recvmsg and sendmsg, and errno after it; `error` gets the reason of a failure.
Moved moved(ssize_t result, int& error);

}  // namespace trireme::wire
