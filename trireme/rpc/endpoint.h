#pragma once
// Transport of calls between workers: a link to each other worker, whose messages arrive once and in order
// for as long as both processes live. A broken connection is made again. Unacknowledged messages are sent
// again, and duplicates are dropped. A link is lost in three cases: no peer resumes the connection for
// lost_after_s; the peer acknowledges nothing, or a new connection that its host took gets no answer, for
// silent_after_s; or another process answers. Then both ends are notified, and the link carries nothing
// again.
//
// Each direction has a connection of its own, which its sender makes. A wire::Node: see there for threads and
// for simulation.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "trireme/rpc/ids.h"
#include "trireme/wire/node.h"

namespace trireme::rpc {

/// Identity of this worker, addresses of others, and bounds for lost links.
struct EndpointOptions {
  WorkerInfo self = {};
  /// Where to connect to for a worker.
  std::function<wire::Address(WorkerId)> address_of = {};
  double lost_after_s = 3;
  double silent_after_s = 30;
  double ping_every_s = 5;  ///< of a link on which nothing else happens
};

/// Events of an Endpoint; called on its thread.
class EndpointEvents {
 public:
  virtual ~EndpointEvents() = default;
  /// A message of another worker: each once, in the order in which it was sent.
  virtual void on_message(WorkerId from, wire::Message message) = 0;
  /// Once for a worker. `left`: it has announced its end, after all of its messages.
  virtual void on_gone(WorkerId worker, bool left, const std::string& reason) = 0;
  /// A message that the other end does not take, as it is longer than either end's max_message_bytes; it was
  /// not sent.
  virtual void on_rejected(WorkerId, const wire::Message&, const std::string& /*reason*/) {}
  /// The first time that the other end of a link has answered.
  virtual void on_met(WorkerId) {}
  /// At least as often as wake_within() asked for.
  virtual void on_tick() {}
};

class Endpoint final : public wire::Node {
 public:
  /// `events` outlives it.
  Endpoint(EndpointOptions options, EndpointEvents& events);
  ~Endpoint() override;

  /// Kinds are above kLastOwnKind. To a worker that is gone: nothing.
  void send(WorkerId to, wire::Message message);
  static constexpr std::uint16_t kLastOwnKind = 15;
  /// From now on this end detects the end of the worker, also when there is no message for it.
  void watch(WorkerId worker);
  /// The last message to every worker that it has met. Earlier messages arrive first.
  void say_good_bye();
  /// Whether the others have everything.
  bool all_acknowledged() const;
  /// Of a message that send() has taken: whether the other's process has it.
  bool has_met(WorkerId worker) const;
  std::size_t num_unacknowledged(WorkerId worker) const;
  bool is_gone(WorkerId worker) const { return gone_.contains(worker); }
  /// on_tick() not later than in so many seconds.
  void wake_within(double seconds);

  void on_start(wire::Surroundings& surroundings) override;
  void on_connected(wire::ConnectionId connection, const wire::PeerIdentity& peer) override;
  void on_message(wire::ConnectionId connection, wire::Message message) override;
  void on_closed(wire::ConnectionId connection, wire::CloseCause cause, const std::string& reason) override;
  void on_timer(wire::TimerId timer) override;

 private:
  struct Link;      ///< messages to a worker
  struct Incoming;  ///< messages from a worker

  Link& link(WorkerId worker);
  void connect(Link& link);
  void transmit(Link& link);
  void send_own(wire::ConnectionId connection, wire::Message message);
  void refused(const Link& link, wire::Message& message, const std::string& reason);
  void repeat(Link& link);
  void greet(const Link& link);
  void acknowledged(Link& link, std::uint64_t up_to);
  void on_welcome(Link& link, const wire::Message& message);
  void on_hello(wire::ConnectionId connection, const wire::Message& message);
  void on_sequenced(wire::ConnectionId connection, wire::Message message);
  void acknowledge(Incoming& incoming);
  void look_at(Link& link, std::int64_t now_ns);
  void gone(WorkerId worker, bool left, std::string reason);  // by value: the link that it may be of goes
  void arm(std::int64_t at_ns);

  const EndpointOptions options_;
  EndpointEvents& events_;
  wire::Surroundings* around_ = nullptr;
  std::map<WorkerId, Link> links_;
  std::map<WorkerId, Incoming> incoming_;
  std::map<wire::ConnectionId, WorkerId> outgoing_connections_, incoming_connections_;
  std::set<WorkerId> gone_;
  std::optional<wire::TimerId> timer_;
  std::int64_t timer_at_ns_ = 0;
  bool good_bye_ = false;
};

}  // namespace trireme::rpc
