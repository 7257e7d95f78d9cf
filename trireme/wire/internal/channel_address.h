#pragma once
// Addresses of channels, as text and as the kernel has them. Pure functions, but for the look-up of names.

#include <sys/socket.h>

#include <vector>

#include "trireme/wire/node.h"
#include "trireme/wire/socket.h"

namespace trireme::wire {

enum class TransportKind : std::uint8_t { kTcp, kUnix, kInproc, kForeign };

struct ChannelAddress {
  TransportKind kind = TransportKind::kTcp;
  Endpoint endpoint = {};  ///< of kTcp; port 0 takes a free one
  std::string path = {};   ///< of kUnix; the name of kInproc; all of kForeign, which has to be looked up

  /// "tcp:HOST:PORT", "unix:PATH", "inproc:NAME"; other schemes where kAllowed. Throws InvalidArgument.
  enum class Foreign : std::uint8_t { kRefused, kAllowed };
  static ChannelAddress parse(const Address& address, Foreign foreign = Foreign::kRefused);
  Address text() const;
  /// Whether the addresses are known without a name server.
  bool is_numeric() const;
};

/// Whether the path of a Unix socket is a name that no file has: "@NAME" (unix(7), "abstract").
bool is_without_file(const std::string& path);

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  /// Whether only programs of this host reach it.
  bool is_local() const;
};

/// All addresses of the name. Throws CommError for an unknown host.
std::vector<SocketAddress> resolve(const ChannelAddress& address);

/// The ends of a connected socket, in one form however the kernel writes them: "tcp:127.0.0.1:4444".
std::string near_end(int fd);
std::string far_end(int fd);
/// Of the far end: the network in which the owner of one address may have others: all of the loopback, 64
/// bits of IPv6.
std::string network_of(int fd);

}  // namespace trireme::wire
