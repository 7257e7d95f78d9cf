#pragma once
// Messages between a store's client and server. All numbers are little-endian.
//   server: 8 bytes kGreeting, 32 bytes nonce
//   client: 8 bytes kGreeting, 32 bytes nonce, 32 bytes proof that it has the secret
//   server: 1 byte verdict, 32 bytes proof that it has the secret (zeros where it rejects)
// then frames, a request and its reply in turn: 4 bytes length, that many bytes, 32 bytes proof of the frame.
// Proofs are HMACs of the side and both nonces; those of frames cover the frame and its number as well. No
// proof is valid in another connection, for the other side, at another place or for another frame: a relay of
// a handshake cannot use the connection that follows.
// Pure functions, and Session, which belongs to one connection.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/wire/secret.h"

namespace trireme::wire::store {

constexpr std::string_view kGreeting = "TRIREME2";  // its last character is the version of all this
constexpr std::size_t kHelloBytes = 8 + 32;
constexpr std::size_t kAnswerBytes = 8 + 32 + 32;
constexpr std::size_t kVerdictBytes = 1 + 32;
constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kProofBytes = 32;
/// More is no message of ours.
constexpr std::size_t kMaxFrameBytes = 16u << 20;

enum class Side { kServer, kClient };
Digest proof(const Secret& secret, Side speaker, const Nonce& of_server, const Nonce& of_client);

struct Answer {
  Nonce nonce;
  Digest proof;
};
std::string encode_hello(const Nonce& nonce);
/// Empty when the bytes are not one; so below.
std::optional<Nonce> decode_hello(std::string_view bytes);
std::string encode_answer(const Answer& answer);
std::optional<Answer> decode_answer(std::string_view bytes);
/// Null: rejected.
std::string encode_verdict(const Digest* proof);
std::optional<Digest> decode_verdict(std::string_view bytes);

enum class Action : std::uint8_t { kSet = 1, kGet, kAdd, kCheck, kWait, kCompareSet, kDelete, kCount };

struct Request {
  Action action = Action::kCount;
  std::int64_t number = 0;             ///< the addend; the timeout, in milliseconds
  std::vector<std::string> keys = {};  ///< one, but for kCheck and kWait
  std::string_view value = {};         ///< values may be large: they are views of memory of others
  std::string_view expected = {};      ///< of kCompareSet
};

struct Reply {
  enum class Kind : std::uint8_t { kNo, kYes, kError };
  Kind kind = Kind::kYes;  ///< of kCheck, kWait: all there; of kGet, kDelete: it was there
  std::int64_t number = 0;
  std::string_view value = {};  ///< or the fault of the key; a view of memory of others
};

/// Seals the frames of one end of a connection, and checks those of the other.
class Session {
 public:
  /// `side` is this end. Both nonces are those of the handshake, and `secret` outlives the session.
  Session(const Secret& secret, Side side, const Nonce& of_server, const Nonce& of_client);
  /// A frame of encode() with its proof after it, in the memory of the frame. Each counts as sent.
  std::string seal(std::string frame);
  /// The bytes after the length; empty where this is not the next frame that the other end has sealed.
  std::optional<std::string_view> open(std::string_view sealed);

 private:
  struct Direction {
    std::string prefix;  ///< of the hashed bytes
    std::uint64_t number = 0;
  };
  Direction direction(Side speaker, const Nonce& of_server, const Nonce& of_client) const;
  Digest next_proof(Direction& direction, std::string_view frame) const;

  const Secret* secret_;
  Direction mine_, theirs_;
};

/// With the length before it, and room for the proof after it.
std::string encode(const Request& request);
std::string encode(const Reply& reply);
/// From the bytes after the length, of which the result holds views; empty when they are anything but one
/// whole message.
std::optional<Request> decode_request(std::string_view bytes);
std::optional<Reply> decode_reply(std::string_view bytes);
std::uint32_t decode_length(std::string_view bytes);

}  // namespace trireme::wire::store
