#pragma once
// A socket that waits for peers at one address. A Unix socket is in a folder of its user alone, and is
// removed with its listener; one that a killed process has left is replaced. Belongs to the loop's thread.

#include <optional>

#include "trireme/wire/internal/channel_address.h"
#include "trireme/wire/security.h"

namespace trireme::wire {

class Listener {
 public:
  /// Throws InvalidArgument where others reach the address and no proof would be required, or where the
  /// folder is open to others; CommError where the address cannot be bound.
  Listener(const Address& address, Security::Kind security);
  ~Listener();
  Listener(Listener&&) = default;
  Listener& operator=(Listener&&) = delete;

  const Address& address() const { return address_; }
  TransportKind kind() const { return kind_; }
  int fd() const { return socket_.fd(); }
  enum class Accepted { kOne, kNone, kNoDescriptors };
  Accepted accept(Socket& socket);

 private:
  TransportKind kind_;
  Socket socket_;
  Address address_;
  std::string path_;  ///< of a Unix socket
};

/// Throws InvalidArgument where the address is not local and no proof is asked for.
void require_proof(const SocketAddress& address, const Address& whole, Security::Kind security);

}  // namespace trireme::wire
