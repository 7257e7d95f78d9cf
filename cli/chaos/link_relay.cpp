#include "cli/chaos/link_relay.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "trireme/base/error.h"

namespace trireme::cli {
namespace {

constexpr int kLook_ms = 5;  // interval of checks for a new state

/// Calls ::bind or ::connect with the abstract socket address of "unix:@NAME".
int with_address(int (*call)(int, const sockaddr*, socklen_t), int fd, const wire::Address& text) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  const std::string name = text.substr(text.find('@') + 1).substr(0, sizeof address.sun_path - 1);
  name.copy(address.sun_path + 1, name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return call(fd, reinterpret_cast<const sockaddr*>(&address), length);
}

/// The server treats connections of this process as those of this user.
bool is_of_this_user(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == ::geteuid();
}

/// Returns whether the direction is still open.
bool pass(int from, int to, std::string& waiting) {
  if (waiting.empty()) {
    std::array<char, 64 << 10> bytes;
    const ssize_t got = ::recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN)) return false;
    if (got > 0) waiting.assign(bytes.data(), static_cast<std::size_t>(got));
  }
  if (waiting.empty()) return true;
  const ssize_t sent = ::send(to, waiting.data(), waiting.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0 && errno != EAGAIN) return false;
  waiting.erase(0, static_cast<std::size_t>(std::max<ssize_t>(sent, 0)));
  return true;
}

}  // namespace

LinkRelay::LinkRelay(wire::Address address, wire::Address target)
    : address_(std::move(address)), target_(std::move(target)) {
  listen();
  thread_ = std::thread([this] { serve(); });
}

LinkRelay::~LinkRelay() {
  stops_ = true;
  thread_.join();
}

void LinkRelay::listen() {
  listens_ = wire::Socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (with_address(&::bind, listens_.fd(), address_) != 0 || ::listen(listens_.fd(), 64) != 0)
    throw CommError(text("no relay at ", address_, ": ", std::strerror(errno)));
}

void LinkRelay::serve() {
  while (!stops_) {
    const State state = state_;
    if (state == State::kCut) {
      links_.clear();
      listens_ = wire::Socket();
    } else if (listens_.fd() < 0) {
      listen();
    }
    std::vector<pollfd> events;
    if (state == State::kPassing) {
      events.push_back({.fd = listens_.fd(), .events = POLLIN, .revents = 0});
      for (const Link& link : links_) {
        for (const Way* way : {&link.there, &link.back})
          events.push_back(way->waiting.empty() ? pollfd{way->from, POLLIN, 0} : pollfd{way->to, POLLOUT, 0});
      }
    }
    ::poll(events.data(), events.size(), kLook_ms);
    if (state != State::kPassing) continue;
    accept();
    for (Link& link : links_) pass(link);
    links_.remove_if([](const Link& link) { return link.has_ended; });
  }
}

void LinkRelay::accept() {
  wire::Socket one(::accept4(listens_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (one.fd() < 0 || !is_of_this_user(one.fd())) return;
  wire::Socket other(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (with_address(&::connect, other.fd(), target_) != 0) return;
  const int from = one.fd(), to = other.fd();
  links_.push_back({std::move(one), std::move(other), {from, to, {}}, {to, from, {}}});
}

void LinkRelay::pass(Link& link) {
  for (Way* way : {&link.there, &link.back})
    link.has_ended = !cli::pass(way->from, way->to, way->waiting) || link.has_ended;
}

}  // namespace trireme::cli
