#pragma once
// Authenticated connections between two ranks. The connecting end sends its rank, and both prove that they
// have the job's secret. The proof is an HMAC over random numbers of both ends and the listener's address as
// each end sees it. So a relay, which has another address, cannot forward proofs. Sockets have TCP_NODELAY.
// Belongs to one thread.

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "trireme/wire/secret.h"
#include "trireme/wire/socket.h"

namespace trireme::topology {

/// Settings that have to be equal at both ends.
struct Terms {
  int from = 0;  ///< the rank that connects
  int to = 0;
  std::string purpose;
};

/// Throws CommError, as all of these.
wire::Socket connect_introduced(const wire::Endpoint& endpoint, const wire::Secret& secret,
                                const Terms& terms, const Deadline& deadline);

/// The introduction of a connecting end.
struct Introduction {
  std::int64_t from = 0;
  wire::Nonce nonce{};
  wire::Digest proof{};
};

struct Introduced {
  int from = 0;
  wire::Socket socket;
};

/// Accepts connections of a listening socket and reads all of their proofs side by side: one without bytes,
/// or with a part of them, delays no other. Of too many without a proof, the oldest of the host with most of
/// them is closed.
class Reception {
 public:
  /// `listening` and `secret` outlive it. `terms.from` is not looked at.
  Reception(const wire::Socket& listening, const wire::Secret& secret, Terms terms);
  /// The next one that proves to be a rank that `expects` accepts, and was notified of it. Other connections
  /// are closed without ending the wait. Throws CommError at the deadline, with their number.
  Introduced next(const std::function<bool(int from)>& expects, const Deadline& deadline);

 private:
  struct Stranger {
    wire::Socket socket;
    wire::Endpoint peer;
    wire::Nonce nonce;  ///< that its proof is to be about
    Introduction introduction = {};
    std::size_t num_said = 0;  ///< bytes of it
  };

  void accept_all();
  void make_room();
  void send_away(Stranger& stranger);
  /// Reads the available bytes. Returns the rank, once it is proved and expected.
  std::optional<int> hear(Stranger& stranger, const std::function<bool(int from)>& expects);
  [[noreturn]] void throw_nobody_came() const;

  const wire::Socket& listening_;
  const wire::Secret& secret_;
  const Terms terms_;
  std::deque<Stranger> unauthenticated_;  ///< in the order in which they came
  int num_sent_away_ = 0;
  std::string last_sent_away_;  ///< its address
};

template <class T>
void send_value(const wire::Socket& socket, const T& value, const Deadline& deadline) {
  wire::send_all(socket, std::as_bytes(std::span(&value, 1)), deadline);
}
template <class T>
T receive_value(const wire::Socket& socket, const Deadline& deadline) {
  T value{};
  wire::receive_all(socket, std::as_writable_bytes(std::span(&value, 1)), deadline);
  return value;
}

}  // namespace trireme::topology
