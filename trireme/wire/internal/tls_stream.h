#pragma once
// TLS 1.3 over a socket, by OpenSSL. Both ends show a certificate of the cluster's authority, or both have
// the key of the connecting end's role as a pre-shared key. Pre-shared keys are combined with fresh
// Diffie-Hellman keys (RFC 8446, 2.2). One thread, except for the context, which loops may share.

#include <memory>
#include <optional>
#include <string>

#include "trireme/wire/internal/stream.h"
#include "trireme/wire/node.h"
#include "trireme/wire/security.h"
#include "trireme/wire/socket.h"

struct ssl_ctx_st;
struct ssl_st;

namespace trireme::wire {

/// Common state of all connections of a participant.
class TlsContext {
 public:
  /// Throws InvalidArgument that names the file that cannot be used, and why.
  explicit TlsContext(const TlsFiles& files);
  /// With keys of roles under this secret; `self`: the identity of this end where it connects.
  TlsContext(Secret secret, const PeerIdentity& self);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;
  ssl_ctx_st* get() const { return context_; }
  bool has_certificates() const { return secret_.empty(); }
  /// The key that a connecting end of this stated identity needs.
  Secret key_of(const std::string& stated) const { return secret_.of_peer(stated); }
  /// The stated identity of this end where it connects.
  const std::string& self() const { return self_; }

 private:
  ssl_ctx_st* context_;
  Secret secret_;
  std::string self_;
};

class TlsStream final : public Stream {
 public:
  TlsStream(const TlsContext& context, Socket socket, bool listening);
  ~TlsStream() override;

  /// The handshake, as far as it goes: kMoved when it is done.
  Flow secure();
  /// ROLE.NAME of the peer's certificate; empty where it has none. After the handshake.
  std::optional<PeerIdentity> identity() const;

  int fd() const override { return wire_.socket.fd(); }
  Moved read(std::span<const iovec> parts) override;
  Moved write(std::span<const iovec> parts) override;
  bool has_output() const override { return !wire_.output.empty(); }
  Flow flush() override;
  bool has_input() override { return may_have_more_; }
  bool arm() override { return false; }
  void notice() override {}
  bool tells_room_by_input() const override { return false; }
  bool watched_while_paused() const override { return false; }
  std::string failure() const override { return failure_; }

  /// Input and output of OpenSSL. Records wait here, so that many go with one call.
  struct Wire {
    Socket socket;
    std::string output = {};
    std::size_t output_sent = 0;
    std::size_t num_read = 0;
    bool secured = false;
  };

 private:
  Flow flow_of(int result);

  Wire wire_;
  ssl_st* ssl_;
  const bool by_key_;
  bool may_have_more_ = false;  ///< the last read() filled all that it was given
  std::string failure_;
};

}  // namespace trireme::wire
