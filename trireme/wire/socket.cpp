#include "trireme/wire/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>

#include "trireme/base/error.h"

namespace trireme::wire {
namespace {

class Addresses {
 public:
  explicit Addresses(const Endpoint& endpoint) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    const int error =
        ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &first_);
    if (error != 0) {
      throw CommError(text("'", endpoint.host, "' is not a known host: ", ::gai_strerror(error)));
    }
  }
  ~Addresses() { ::freeaddrinfo(first_); }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  const addrinfo& first() const { return *first_; }

 private:
  addrinfo* first_ = nullptr;
};

Endpoint numbers_of(const sockaddr_storage& address, socklen_t length) {
  char host[NI_MAXHOST] = "";
  char port[NI_MAXSERV] = "0";
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
  return {host, std::atoi(port)};
}

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
  }
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

/// Returns false at the deadline.
bool wait_for(int fd, short event, const Deadline& deadline) {
  while (true) {
    pollfd polled{.fd = fd, .events = event, .revents = 0};
    const double left_ms = std::min(std::ceil(deadline.remaining_s() * 1000), 1e9);
    const int ready = ::poll(&polled, 1, static_cast<int>(left_ms));
    if (ready > 0) return true;
    if (ready == 0 && deadline.expired()) return false;
    if (ready < 0 && errno != EINTR)
      throw CommError(text("cannot wait for a socket: ", std::strerror(errno)));
  }
}

std::optional<Socket> try_address(const addrinfo& address, const Deadline& deadline) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.fd() < 0) return std::nullopt;
  if (::connect(socket.fd(), address.ai_addr, address.ai_addrlen) != 0) {
    int error = 0;
    socklen_t length = sizeof error;
    if (errno != EINPROGRESS || !wait_for(socket.fd(), POLLOUT, deadline) ||
        ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) {
      return std::nullopt;
    }
  }
  const int on = 1;
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return socket;
}

/// Calls `step`, which returns as send() and recv() do, until `left` is empty.
template <class Bytes, class Step>
void move_all(const Socket& socket, Bytes left, short event, const Deadline& deadline, const Step& step) {
  while (!left.empty()) {
    const ssize_t moved = step(left);
    if (moved > 0) {
      left = left.subspan(static_cast<std::size_t>(moved));
    } else if (moved == 0) {
      throw CommError(text(socket.peer().text(), " has closed the connection"));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(socket.fd(), event, deadline)) {
        throw CommError(text(socket.peer().text(), " does not answer"));
      }
    } else if (errno != EINTR) {
      const int error = errno;
      const Endpoint peer = socket.peer();  // empty if the other side has reset the connection
      const std::string whose = peer.port != 0 ? " to " + peer.text() : std::string();
      throw CommError(text("the connection", whose, " is lost: ", std::strerror(error)));
    }
  }
}

CommError cannot_listen(int error) {
  const char* what_to_do =
      error == EADDRINUSE      ? "another program listens there (another training run?): end it, or choose a "
                                 "free port (--master-port, MASTER_PORT) for all ranks"
      : error == EADDRNOTAVAIL ? "this host does not have that address: give one of the host of rank 0 "
                                 "(--master-addr, MASTER_ADDR) to all ranks"
                               : "choose an address and port that it may use (--master-addr, --master-port, "
                                 "MASTER_ADDR, MASTER_PORT)";
  return CommError(text(std::strerror(error), "; ", what_to_do));
}

}  // namespace

std::string Endpoint::text() const {
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? trireme::text("[", host, "]:", port) : trireme::text(host, ":", port);
}

Endpoint Endpoint::parse(const std::string& text, const std::string& what) {
  const auto colon = text.rfind(':');
  Endpoint result;
  bool valid = colon != std::string::npos && colon > 0;
  if (valid) {
    result.host = text.substr(0, colon);
    if (result.host.starts_with("[") && result.host.ends_with("]")) {
      result.host = result.host.substr(1, result.host.size() - 2);
    }
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data() + colon + 1, end, result.port);
    valid = error == std::errc() && at == end && result.port >= 1 && result.port <= 65535;
  }
  require(valid, what, " is '", text, "'; expected HOST:PORT");
  return result;
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

Endpoint Socket::local() const {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
  return numbers_of(address, length);
}

Endpoint Socket::peer() const {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  ::getpeername(fd_, reinterpret_cast<sockaddr*>(&address), &length);
  return numbers_of(address, length);
}

bool is_loopback(const Endpoint& endpoint) {
  const Addresses addresses(endpoint);
  for (const addrinfo* each = &addresses.first(); each != nullptr; each = each->ai_next) {
    if (!is_loopback(*each->ai_addr)) return false;
  }
  return true;
}

Socket bind_to(const Endpoint& endpoint) {
  const Addresses addresses(endpoint);
  const addrinfo& address = addresses.first();
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.fd() < 0) throw CommError(text("no socket: ", std::strerror(errno)));
  const int on = 1;
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.fd(), address.ai_addr, address.ai_addrlen) != 0) throw cannot_listen(errno);
  return socket;
}

Socket listen_at(const Endpoint& endpoint) {
  Socket socket = bind_to(endpoint);
  if (::listen(socket.fd(), SOMAXCONN) != 0) throw cannot_listen(errno);
  return socket;
}

std::optional<Socket> try_connect(const Endpoint& endpoint, const Deadline& deadline) {
  const Addresses addresses(endpoint);
  for (const addrinfo* each = &addresses.first(); each != nullptr; each = each->ai_next) {
    if (auto socket = try_address(*each, deadline)) return socket;
  }
  return std::nullopt;
}

void send_all(const Socket& socket, std::span<const std::byte> bytes, const Deadline& deadline) {
  move_all(socket, bytes, POLLOUT, deadline, [&](std::span<const std::byte> left) {
    return ::send(socket.fd(), left.data(), left.size(), MSG_NOSIGNAL);
  });
}

void receive_all(const Socket& socket, std::span<std::byte> bytes, const Deadline& deadline) {
  move_all(socket, bytes, POLLIN, deadline,
           [&](std::span<std::byte> left) { return ::recv(socket.fd(), left.data(), left.size(), 0); });
}

std::string local_address_towards(const Endpoint& endpoint) {
  const Addresses addresses(endpoint);
  for (const addrinfo* each = &addresses.first(); each != nullptr; each = each->ai_next) {
    const Socket socket(::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    // connect() on a datagram socket sends nothing: it only makes the kernel choose the route.
    if (socket.fd() >= 0 && ::connect(socket.fd(), each->ai_addr, each->ai_addrlen) == 0) {
      return socket.local().host;
    }
  }
  return {};
}

}  // namespace trireme::wire
