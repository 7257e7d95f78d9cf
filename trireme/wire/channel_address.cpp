#include "trireme/wire/internal/channel_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string_view>

#include "trireme/base/error.h"

namespace trireme::wire {
namespace {

constexpr std::string_view kInprocPrefix = "trireme-inproc-";

/// A name with the id of this process: a socket without a file (unix(7), "abstract").
std::string inproc_name(const std::string& name) { return text('\0', kInprocPrefix, ::getpid(), "-", name); }

SocketAddress unix_address(const std::string& path, const Address& whole) {
  SocketAddress result;
  auto& address = reinterpret_cast<sockaddr_un&>(result.storage);
  require(path.size() < sizeof address.sun_path, "'", whole, "' has ", path.size(),
          " characters; the system takes at most ", sizeof address.sun_path - 1,
          " for a Unix socket: choose a shorter folder");
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (is_without_file(path)) address.sun_path[0] = '\0';
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  if (address.sun_path[0] == '\0') --result.length;
  return result;
}

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

AddressList look_up(const Endpoint& endpoint, int flags, int& error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* first = nullptr;
  error = ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &first);
  return AddressList(error == 0 ? first : nullptr, ::freeaddrinfo);
}

std::string end_text(const SocketAddress& address) {
  if (address.family() == AF_UNIX) {
    const auto& at = reinterpret_cast<const sockaddr_un&>(address.storage);
    const std::size_t length =
        address.length - std::min<std::size_t>(address.length, offsetof(sockaddr_un, sun_path));
    std::string path(at.sun_path, length);
    if (path.starts_with(text('\0', kInprocPrefix))) return "inproc:" + path.substr(1);
    if (path.starts_with('\0')) return "unix:@" + path.substr(1);
    return "unix:" + path.substr(0, path.find('\0'));
  }
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  ::getnameinfo(address.get(), address.length, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
  std::string_view name = host;
  if (name.starts_with("::ffff:")) name.remove_prefix(7);
  return "tcp:" + Endpoint{std::string(name), std::atoi(port)}.text();
}

SocketAddress far_address(int fd) {
  SocketAddress address;
  address.length = sizeof address.storage;
  ::getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  return address;
}

}  // namespace

bool is_without_file(const std::string& path) { return path.starts_with('@'); }

ChannelAddress ChannelAddress::parse(const Address& address, Foreign foreign) {
  const auto colon = address.find(':');
  const std::string scheme = address.substr(0, colon);
  std::string rest = colon == std::string::npos ? "" : address.substr(colon + 1);
  if (scheme == "unix" && !rest.empty()) return {.kind = TransportKind::kUnix, .path = rest};
  if (scheme == "inproc" && !rest.empty()) return {.kind = TransportKind::kInproc, .path = rest};
  if (scheme != "tcp" && foreign == Foreign::kAllowed)
    return {.kind = TransportKind::kForeign, .path = address};
  require(scheme == "tcp", "'", address, "' is no address; expected tcp:HOST:PORT, unix:PATH or inproc:NAME");
  const bool any_port = rest.ends_with(":0");
  if (any_port) rest.back() = '1';
  Endpoint endpoint = Endpoint::parse(rest, "the address in '" + address + "'");
  if (any_port) endpoint.port = 0;
  return {.kind = TransportKind::kTcp, .endpoint = std::move(endpoint)};
}

bool is_address(const Address& text) {
  try {
    ChannelAddress::parse(text);
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

Address ChannelAddress::text() const {
  if (kind == TransportKind::kForeign) return path;
  if (kind == TransportKind::kTcp) return "tcp:" + endpoint.text();
  return (kind == TransportKind::kUnix ? "unix:" : "inproc:") + path;
}

bool ChannelAddress::is_numeric() const {
  if (kind == TransportKind::kForeign) return false;
  if (kind != TransportKind::kTcp) return true;
  in6_addr ignored;
  return ::inet_pton(AF_INET, endpoint.host.c_str(), &ignored) == 1 ||
         ::inet_pton(AF_INET6, endpoint.host.c_str(), &ignored) == 1;
}

bool SocketAddress::is_local() const {
  if (family() == AF_UNIX) return true;
  if (family() == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr) >> 24 == 127;
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

std::vector<SocketAddress> resolve(const ChannelAddress& address) {
  if (address.kind == TransportKind::kUnix) return {unix_address(address.path, address.text())};
  if (address.kind == TransportKind::kInproc) {
    return {unix_address(inproc_name(address.path), address.text())};
  }
  int error = 0;
  const AddressList found = look_up(address.endpoint, address.is_numeric() ? AI_NUMERICHOST : 0, error);
  if (error != 0) {
    throw CommError(text("'", address.endpoint.host, "' is not a known host: ", ::gai_strerror(error)));
  }
  std::vector<SocketAddress> result;
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    SocketAddress& one = result.emplace_back();
    std::memcpy(&one.storage, each->ai_addr, each->ai_addrlen);
    one.length = each->ai_addrlen;
  }
  return result;
}

std::string near_end(int fd) {
  SocketAddress address;
  address.length = sizeof address.storage;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  return end_text(address);
}

std::string far_end(int fd) { return end_text(far_address(fd)); }

std::string network_of(int fd) {
  const SocketAddress address = far_address(fd);
  if (address.is_local()) return "local";
  if (address.family() == AF_INET)
    return text(reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr.s_addr);
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr;
  const std::size_t from = IN6_IS_ADDR_V4MAPPED(&v6) ? 8 : 0;
  return {reinterpret_cast<const char*>(v6.s6_addr) + from, 8};
}

}  // namespace trireme::wire
