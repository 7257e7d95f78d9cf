#pragma once
// The handshake of two ends of a channel, before the first frame. All numbers are little-endian. Each of the
// three records begins with "TRWH", version, step and the length of the rest (2 bytes; 4 KiB with
// everything):
//   1 challenge, by the listening end:  how it proves, nonce, role, name, limits.
//   2 hello, by the connecting end:     the same, whether it wants shared memory, proof.
//   3 welcome, by the listening end:    verdict, whether shared memory follows, proof, reason of a rejection.
// A proof is an HMAC of the side, the addresses of both ends as each sees them, and every byte of the first
// two records. It is valid in no other connection, between no other addresses and for no other peer. Its key
// is that of the connecting end's role and name (Secret::of_role), in both directions. An end with that key
// alone can connect as that role, and can recognize an end with the whole secret. The listening end sends no
// proof to a peer that it rejects. A state machine: bytes in, bytes out; no clock.

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "trireme/wire/frame.h"
#include "trireme/wire/node.h"
#include "trireme/wire/security.h"

namespace trireme::wire {

inline constexpr std::size_t kMaxHandshakeBytes = 4096;

struct HandshakeOptions {
  bool listening = false;
  Security::Kind security = Security::Kind::kLocal;
  Secret secret = {};  ///< of kLocal the user's key, except where the kernel identifies the peer's user
  bool kernel_names_user = false;
  PeerIdentity self = {};
  std::optional<PeerIdentity> proved = {};  ///< the identity in the peer's certificate, which replaces the
                                            ///< stated one
  std::string listening_address = {};
  std::string connecting_address = {};
  FrameLimits limits = {};
  bool shared_memory = false;  ///< this end is willing
};

class Handshake {
 public:
  enum class State { kUnderWay, kDone, kRefused };

  explicit Handshake(HandshakeOptions options);

  State state() const { return state_; }
  /// The bytes to send, also after a rejection. Empties it.
  std::string take_output() { return std::exchange(output_, {}); }
  /// Number of further bytes that it can take: never one that belongs to the frames after it.
  std::size_t wanted() const;
  /// At most wanted() bytes.
  void take(std::string_view bytes);

  /// With kRejected: why.
  const std::string& reason() const { return reason_; }
  /// A word for counters: "wrong secret".
  const std::string& refusal() const { return rejection_; }
  /// With kDone; so below.
  const PeerIdentity& peer() const { return peer_; }
  const FrameLimits& peer_limits() const { return peer_limits_; }
  bool shared_memory() const { return shared_memory_; }

 private:
  void take_record(int step, std::string_view body);
  void challenged(std::string_view body);
  void greeted(std::string_view body);
  void welcomed(std::string_view body);
  /// Reads the introductions of both ends; false after a rejection.
  bool take_introduction(class RecordReader& reader);
  std::string introduction() const;
  const char* words_of(Security::Kind kind) const;
  std::string wrong_secret() const;
  Secret key_of_connection() const;
  Digest proof(bool by_listener) const;
  void refuse(const std::string& refusal, const std::string& reason);

  const HandshakeOptions options_;
  const Nonce nonce_;
  State state_ = State::kUnderWay;
  std::string input_, output_;
  std::string transcript_;  ///< bodies of challenge and hello, without its proof
  PeerIdentity peer_;
  FrameLimits peer_limits_;
  bool shared_memory_ = false;
  std::string reason_, rejection_;
};

}  // namespace trireme::wire
