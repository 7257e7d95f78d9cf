#include "cli/chaos/link_relay.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "trireme/base/error.h"

namespace trireme::cli {
namespace {

constexpr int kLook_ms = 5;  // for a new state

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

/// Whether the way is still open.
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

LinkRelay::LinkRelay(std::function<int()> target) : target_(std::move(target)) {
  listen();
  thread_ = std::thread([this] { serve(); });
}

LinkRelay::~LinkRelay() {
  stops_ = true;
  thread_.join();
}

void LinkRelay::listen() {
  listens_ = wire::Socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  ::setsockopt(listens_.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address = loopback(port_);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listens_.fd(), generic, length) != 0 || ::listen(listens_.fd(), 64) != 0 ||
      ::getsockname(listens_.fd(), generic, &length) != 0)
    throw CommError(text("no port for a relay: ", std::strerror(errno)));
  port_ = ntohs(address.sin_port);
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
  if (one.fd() < 0) return;
  wire::Socket other(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(target_());
  if (::connect(other.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return;
  const int from = one.fd(), to = other.fd();
  links_.push_back({std::move(one), std::move(other), {from, to, {}}, {to, from, {}}});
}

void LinkRelay::pass(Link& link) {
  for (Way* way : {&link.there, &link.back})
    link.has_ended = !cli::pass(way->from, way->to, way->waiting) || link.has_ended;
}

}  // namespace trireme::cli
