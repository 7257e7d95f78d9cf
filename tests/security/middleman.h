#pragma once
// A relay between a TCP client and a server. It forwards and records the bytes of both sides, and can send
// bytes of its own. It serves one connection in its own thread until the object is destroyed.

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/wire/socket.h"

namespace trireme::test {

class Middleman {
 public:
  /// Returns the bytes to forward instead of the received ones.
  using Change = std::function<std::string(const std::string& bytes)>;

  explicit Middleman(wire::Endpoint server, const wire::Endpoint& at = {"127.0.0.1", 0})
      : server_(std::move(server)), listening_(wire::listen_at(at)), thread_([this] { serve(); }) {}
  /// Acts as a router that changes the sender's address. `connected` is the connection to the server.
  Middleman(wire::Socket connected, const wire::Endpoint& at)
      : listening_(wire::listen_at(at)), server_side_(std::move(connected)), thread_([this] { serve(); }) {}
  /// Acts as an attacker on the path. `connect` gets the client's address and opens the connection to the
  /// server after the client has connected.
  Middleman(std::function<wire::Socket(const wire::Endpoint& client)> connect, const wire::Endpoint& at)
      : listening_(wire::listen_at(at)), connect_(std::move(connect)), thread_([this] { serve(); }) {}
  ~Middleman() {
    ends_ = true;
    thread_.join();
  }
  Middleman(const Middleman&) = delete;
  Middleman& operator=(const Middleman&) = delete;

  wire::Endpoint endpoint() const { return listening_.local(); }
  /// The bytes that were received so far, before changes.
  std::string said_by_client() const { return said(0); }
  std::string said_by_server() const { return said(1); }
  /// Changes the bytes that are received from now on.
  void change_to_server(const Change& change) { set_change(0, change); }
  void change_to_client(const Change& change) { set_change(1, change); }
  /// Sends additional bytes to the server. Needs a connection.
  void say_to_server(const std::string& bytes) {
    const std::lock_guard lock(mutex_);
    send(server_side_, bytes);
  }

 private:
  struct Way {
    std::string said;
    Change change;
  };

  std::string said(std::size_t way) const {
    const std::lock_guard lock(mutex_);
    return ways_[way].said;
  }
  void set_change(std::size_t way, const Change& change) {
    const std::lock_guard lock(mutex_);
    ways_[way].change = change;
  }

  static void send(const wire::Socket& socket, const std::string& bytes) {
    wire::send_all(socket, std::as_bytes(std::span(bytes)), Deadline::after_s(20));
  }

  /// Forwards received bytes. Returns false at the end of the connection.
  bool pass(const wire::Socket& from, const wire::Socket& to, Way& way) {
    std::array<char, 1 << 16> buffer;
    const ssize_t got = ::recv(from.fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) return false;
    const std::string bytes(buffer.data(), static_cast<std::size_t>(got));
    const std::lock_guard lock(mutex_);
    way.said += bytes;
    send(to, way.change ? way.change(bytes) : bytes);
    return true;
  }

  void serve() {
    wire::Socket client_side;
    std::array<pollfd, 2> polled{pollfd{.fd = listening_.fd(), .events = POLLIN, .revents = 0}, {}};
    while (!ends_ && client_side.fd() < 0) {
      if (::poll(polled.data(), 1, 5) > 0)
        client_side =
            wire::Socket(::accept4(listening_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    }
    if (ends_) return;
    if (connect_) {
      wire::Socket connected = connect_(client_side.peer());
      const std::lock_guard lock(mutex_);
      server_side_ = std::move(connected);
    }
    if (server_side_.fd() < 0) {
      auto connected = wire::try_connect(server_, Deadline::after_s(20));
      if (!connected) return;
      const std::lock_guard lock(mutex_);
      server_side_ = std::move(*connected);
    }
    polled = {pollfd{.fd = client_side.fd(), .events = POLLIN, .revents = 0},
              pollfd{.fd = server_side_.fd(), .events = POLLIN, .revents = 0}};
    try {
      while (!ends_) {
        if (::poll(polled.data(), polled.size(), 5) <= 0) continue;
        if (polled[0].revents != 0 && !pass(client_side, server_side_, ways_[0])) break;
        if (polled[1].revents != 0 && !pass(server_side_, client_side, ways_[1])) break;
      }
    } catch (const CommError&) {  // one side has closed its connection
    }
    ::shutdown(server_side_.fd(), SHUT_RDWR);
  }

  const wire::Endpoint server_;
  const wire::Socket listening_;
  const std::function<wire::Socket(const wire::Endpoint&)> connect_;
  mutable std::mutex mutex_;
  std::array<Way, 2> ways_;
  wire::Socket server_side_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;  // destroyed first
};

}  // namespace trireme::test
