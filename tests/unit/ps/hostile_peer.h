#pragma once
// A malicious peer: a process of this user that connects to a node, with or without a handshake, and then
// sends any bytes.
// Blocking, one thread.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <vector>

#include "trireme/wire/internal/channel_address.h"
#include "trireme/wire/internal/handshake.h"
#include "trireme/wire/internal/send_queue.h"
#include "trireme/wire/socket.h"
#include "trireme/wire/user_key.h"

namespace trireme::ps {

class HostilePeer {
 public:
  /// Connects without a handshake.
  explicit HostilePeer(const wire::Address& address) {
    const auto found = wire::resolve(wire::ChannelAddress::parse(address)).front();
    socket_ = wire::Socket(::socket(found.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket_.fd(), found.get(), found.length), 0);
  }
  /// Connects and makes the handshake with this stated identity.
  HostilePeer(const wire::Address& address, const wire::PeerIdentity& self) : HostilePeer(address) {
    EXPECT_TRUE(
        meet({.secret = address.starts_with("tcp:") ? wire::user_key() : wire::Secret(), .self = self}));
  }

  /// Whether the handshake was accepted.
  bool meet(wire::HandshakeOptions options) {
    options.listening_address = wire::far_end(socket_.fd());
    options.connecting_address = wire::near_end(socket_.fd());
    wire::Handshake handshake(std::move(options));
    while (handshake.state() == wire::Handshake::State::kUnderWay) {
      std::string bytes(handshake.wanted(), '\0');
      const ssize_t got = ::recv(socket_.fd(), bytes.data(), bytes.size(), 0);
      if (got <= 0) return false;
      bytes.resize(static_cast<std::size_t>(got));
      handshake.take(bytes);
      send(handshake.take_output());
    }
    return handshake.state() == wire::Handshake::State::kDone;
  }

  /// Messages as correctly numbered frames.
  std::string frames_of(const std::vector<wire::Message>& messages) {
    std::string bytes;
    for (const wire::Message& message : messages) queue_.push(message);
    while (!queue_.empty()) {
      std::size_t count = 0;
      for (const iovec& part : queue_.next(1 << 20, 96)) {
        bytes.append(static_cast<const char*>(part.iov_base), part.iov_len);
        count += part.iov_len;
      }
      queue_.gone(count);
    }
    return bytes;
  }

  /// Discards received bytes. Returns false if the other end has closed the connection.
  bool send(const std::string& bytes) {
    for (std::size_t at = 0; at < bytes.size();) {
      pollfd both{.fd = socket_.fd(), .events = POLLIN | POLLOUT, .revents = 0};
      if (::poll(&both, 1, kWait_ms) <= 0) return false;
      if ((both.revents & POLLIN) != 0 && !take_some()) return false;
      if ((both.revents & POLLOUT) == 0) continue;
      const ssize_t sent =
          ::send(socket_.fd(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno != EAGAIN) return false;
      at += static_cast<std::size_t>(std::max<ssize_t>(sent, 0));
    }
    return true;
  }
  /// Waits until the other end closes the connection. Returns whether it did.
  bool is_closed() {
    while (true) {
      pollfd input{.fd = socket_.fd(), .events = POLLIN, .revents = 0};
      if (::poll(&input, 1, kWait_ms) <= 0) return false;
      if (!take_some()) return true;
    }
  }

 private:
  static constexpr int kWait_ms = 60'000;  // ends a test that would hang

  bool take_some() {
    std::array<char, 16 << 10> ignored;
    const ssize_t got = ::recv(socket_.fd(), ignored.data(), ignored.size(), MSG_DONTWAIT);
    return got > 0 || (got < 0 && errno == EAGAIN);
  }

  wire::Socket socket_;
  wire::SendQueue queue_{{}};
};

}  // namespace trireme::ps
