#include "trireme/rpc/endpoint.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/rpc/internal/nanoseconds.h"
#include "trireme/wire/fields.h"

namespace trireme::rpc {
namespace {

enum class OwnKind : std::uint16_t {
  kHello = 1,  ///< sender -> receiver, first on a connection
  kWelcome,    ///< the answer
  kAck,        ///< receiver -> sender
  kPing,       ///< sequenced, as are the next and all messages of the layer above
  kGoodBye,
};

struct Hello {
  WorkerId from = kNobody, to = kNobody;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.from, self.to);
  }
};

struct Welcome {
  WorkerId me = kNobody;
  bool gone = false;  ///< the sender counts as ended
  std::uint64_t received = 0;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.me, self.gone, self.received);
  }
};

struct Ack {
  std::uint64_t received = 0;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.received);
  }
};

constexpr double kAckWithin_s = 0.02;
constexpr std::size_t kAckAfterBytes = 256 << 10;
constexpr double kFirstRetry_s = 0.02, kLastRetry_s = 0.5;
// A connection loses no bytes, but a device between two hosts may. Unacknowledged messages are sent again.
constexpr double kFirstRepeat_s = 1, kLastRepeat_s = 8;
constexpr std::size_t kMaxRepeatedBytes = 1 << 20;
constexpr std::size_t kSequenceBytes = 8;

template <class Fields>
wire::Message message_of(OwnKind kind, const Fields& fields) {
  return {.kind = static_cast<std::uint16_t>(kind), .head = wire::encode(fields)};
}

}  // namespace

struct Endpoint::Link {
  enum class State { kIdle, kWaiting, kConnecting, kMeeting, kOpen };
  struct Sent {
    std::uint64_t sequence;
    std::int64_t since_ns;
    wire::Message message;  ///< with its sequence
  };

  WorkerId worker = kNobody;
  State state = State::kIdle;
  wire::ConnectionId connection = 0;
  std::deque<Sent> unacknowledged;
  std::uint64_t last_sequence = 0;
  std::uint64_t transmitted = 0;  ///< last sequence that was sent on this connection
  std::int64_t broken_since_ns = 0, retry_at_ns = 0, quiet_since_ns = 0;
  double retry_s = kFirstRetry_s, repeat_s = kFirstRepeat_s;
  std::int64_t repeat_at_ns = 0;
  std::string last_reason;
  bool watched = false, met = false;
};

struct Endpoint::Incoming {
  WorkerId worker = kNobody;
  wire::ConnectionId connection = 0;
  std::uint64_t received = 0;
  std::size_t bytes_since_ack = 0;
  std::int64_t ack_at_ns = 0;  ///< 0: none is due
};

Endpoint::Endpoint(EndpointOptions options, EndpointEvents& events)
    : options_(std::move(options)), events_(events) {}
Endpoint::~Endpoint() = default;

void Endpoint::on_start(wire::Surroundings& surroundings) { around_ = &surroundings; }

Endpoint::Link& Endpoint::link(WorkerId worker) {
  Link& link = links_[worker];
  link.worker = worker;
  return link;
}

void Endpoint::send(WorkerId to, wire::Message message) {
  if (gone_.contains(to)) return;
  Link& link = this->link(to);
  const std::uint64_t sequence = ++link.last_sequence;
  std::vector<std::byte> head(kSequenceBytes + message.head.size());
  std::memcpy(head.data(), &sequence, kSequenceBytes);
  if (!message.head.empty()) {
    std::memcpy(head.data() + kSequenceBytes, message.head.data(), message.head.size());
  }
  message.head = std::move(head);
  const std::int64_t now = around_->now_ns();
  link.quiet_since_ns = now;
  link.unacknowledged.push_back({sequence, now, std::move(message)});
  arm(now + nanoseconds(options_.silent_after_s));
  if (link.state == Link::State::kOpen) return transmit(link);
  if (link.state == Link::State::kIdle) connect(link);
}

void Endpoint::watch(WorkerId worker) {
  if (gone_.contains(worker)) return;
  Link& link = this->link(worker);
  if (std::exchange(link.watched, true)) return;
  link.quiet_since_ns = around_->now_ns();
  if (link.state == Link::State::kIdle) connect(link);
  arm(around_->now_ns() + nanoseconds(options_.ping_every_s));
}

void Endpoint::connect(Link& link) {
  if (link.broken_since_ns == 0) link.broken_since_ns = around_->now_ns();
  link.state = Link::State::kConnecting;
  link.connection = around_->network().connect(options_.address_of(link.worker));
  outgoing_connections_[link.connection] = link.worker;
}

void Endpoint::transmit(Link& link) {
  for (Link::Sent& each : link.unacknowledged) {
    if (each.sequence <= link.transmitted) continue;
    link.transmitted = each.sequence;
    try {
      around_->network().send(link.connection, each.message);
    } catch (const InvalidArgument& error) {
      refused(link, each.message, error.what());
    }
  }
  if (link.repeat_at_ns != 0) return;
  link.repeat_at_ns = around_->now_ns() + nanoseconds(link.repeat_s);
  arm(link.repeat_at_ns);
}

/// The other end cannot take the message: an empty one gets its place in the sequence.
void Endpoint::refused(const Link& link, wire::Message& message, const std::string& reason) {
  wire::Message instead{.kind = static_cast<std::uint16_t>(OwnKind::kPing)};
  instead.head.assign(message.head.begin(), message.head.begin() + kSequenceBytes);
  std::swap(message, instead);
  around_->network().send(link.connection, message);
  instead.head.erase(instead.head.begin(), instead.head.begin() + kSequenceBytes);
  around_->post([this, worker = link.worker, instead = std::move(instead), reason] {
    events_.on_rejected(worker, instead, reason);
  });
}

void Endpoint::repeat(Link& link) {
  link.repeat_s = std::min(2 * link.repeat_s, kLastRepeat_s);
  link.repeat_at_ns = around_->now_ns() + nanoseconds(link.repeat_s);
  if (link.state == Link::State::kMeeting) return greet(link);
  std::size_t bytes = 0;
  for (const Link::Sent& each : link.unacknowledged) {
    if (each.sequence > link.transmitted || bytes > kMaxRepeatedBytes) break;
    bytes += each.message.num_bytes();
    around_->network().send(link.connection, each.message);
  }
}

void Endpoint::greet(const Link& link) {
  send_own(link.connection, message_of(OwnKind::kHello, Hello{options_.self.id, link.worker}));
}

/// Closes a connection that cannot take even this message.
void Endpoint::send_own(wire::ConnectionId connection, wire::Message message) {
  try {
    around_->network().send(connection, std::move(message));
  } catch (const InvalidArgument& error) {
    around_->report(error.what());
    around_->network().close(connection);
    on_closed(connection, wire::CloseCause::kBadFrame, error.what());
  }
}

void Endpoint::on_connected(wire::ConnectionId connection, const wire::PeerIdentity&) {
  const auto found = outgoing_connections_.find(connection);
  if (found == outgoing_connections_.end()) return;
  Link& link = links_.at(found->second);
  link.state = Link::State::kMeeting;
  link.repeat_s = kFirstRepeat_s;
  link.repeat_at_ns = around_->now_ns() + nanoseconds(link.repeat_s);
  arm(link.repeat_at_ns);
  greet(link);
}

void Endpoint::on_message(wire::ConnectionId connection, wire::Message message) {
  const auto outgoing = outgoing_connections_.find(connection);
  if (outgoing != outgoing_connections_.end()) {
    Link& link = links_.at(outgoing->second);
    if (message.kind == static_cast<std::uint16_t>(OwnKind::kWelcome)) return on_welcome(link, message);
    const auto ack = wire::decode<Ack>(message.head);
    const bool is_ack = message.kind == static_cast<std::uint16_t>(OwnKind::kAck) && ack;
    if (!is_ack || ack->received > link.transmitted) {
      around_->report(text("worker ", link.worker, " answers with what is no part of this protocol"));
      around_->network().close(connection);
      return on_closed(connection, wire::CloseCause::kBadFrame, "it does not keep to the protocol");
    }
    return acknowledged(link, ack->received);
  }
  if (message.kind == static_cast<std::uint16_t>(OwnKind::kHello)) return on_hello(connection, message);
  on_sequenced(connection, std::move(message));
}

void Endpoint::on_welcome(Link& link, const wire::Message& message) {
  const auto welcome = wire::decode<Welcome>(message.head);
  if (welcome && link.state == Link::State::kOpen) return;  // a repeated welcome
  if (!welcome || link.state != Link::State::kMeeting) {
    around_->network().close(link.connection);
    return on_closed(link.connection, wire::CloseCause::kBadFrame, "it does not keep to the protocol");
  }
  if (welcome->me != link.worker) {
    return gone(link.worker, false, "another process listens where it was: it has ended");
  }
  if (welcome->received > link.last_sequence) {
    around_->report(text("worker ", link.worker, " has received what was never sent to it"));
    around_->network().close(link.connection);
    return on_closed(link.connection, wire::CloseCause::kBadFrame, "it does not keep to the protocol");
  }
  if (welcome->gone)
    return gone(link.worker, false, "it continued without this worker, after a long silence");
  link.state = Link::State::kOpen;
  link.broken_since_ns = 0;
  link.retry_s = kFirstRetry_s;
  link.repeat_s = kFirstRepeat_s;
  link.repeat_at_ns = 0;
  acknowledged(link, welcome->received);
  link.transmitted = welcome->received;
  const std::int64_t now = around_->now_ns();
  for (auto& each : link.unacknowledged) each.since_ns = now;
  transmit(link);
  if (!std::exchange(link.met, true)) events_.on_met(link.worker);
}

void Endpoint::acknowledged(Link& link, std::uint64_t up_to) {
  auto& waiting = link.unacknowledged;
  if (waiting.empty() || waiting.front().sequence > up_to) return;
  while (!waiting.empty() && waiting.front().sequence <= up_to) waiting.pop_front();
  link.repeat_s = kFirstRepeat_s;
  link.repeat_at_ns = 0;
  if (waiting.empty()) return;
  link.repeat_at_ns = around_->now_ns() + nanoseconds(link.repeat_s);
  arm(link.repeat_at_ns);
}

void Endpoint::on_hello(wire::ConnectionId connection, const wire::Message& message) {
  const auto hello = wire::decode<Hello>(message.head);
  const auto known = incoming_connections_.find(connection);
  const bool is_self = hello && hello->from == options_.self.id;
  const bool is_another = hello && known != incoming_connections_.end() && known->second != hello->from;
  if (!hello || hello->from == kNobody || is_self || is_another) {
    around_->report("what has connected does not speak this protocol");
    around_->network().close(connection);
    return on_closed(connection, wire::CloseCause::kBadFrame, "it does not keep to the protocol");
  }
  Welcome welcome{.me = options_.self.id, .gone = gone_.contains(hello->from)};
  if (hello->to == options_.self.id && !welcome.gone) {
    Incoming& incoming = incoming_[hello->from];
    if (incoming.connection != 0 && incoming.connection != connection) {
      around_->network().close(incoming.connection);
      incoming_connections_.erase(incoming.connection);
    }
    incoming.worker = hello->from;
    incoming.connection = connection;
    incoming.ack_at_ns = 0;
    incoming_connections_[connection] = hello->from;
    welcome.received = incoming.received;
  }
  send_own(connection, message_of(OwnKind::kWelcome, welcome));
}

void Endpoint::on_sequenced(wire::ConnectionId connection, wire::Message message) {
  const auto found = incoming_connections_.find(connection);
  if (found == incoming_connections_.end()) {
    around_->network().close(connection);  // from a worker that was not welcomed
    return;
  }
  Incoming& incoming = incoming_.at(found->second);
  std::uint64_t sequence = 0;
  if (message.head.size() >= kSequenceBytes) std::memcpy(&sequence, message.head.data(), kSequenceBytes);
  if (sequence == 0 || sequence > incoming.received + 1) {
    around_->report(text("worker ", incoming.worker, " has left out messages: its connection is closed"));
    around_->network().close(connection);
    return on_closed(connection, wire::CloseCause::kBadFrame, "it does not keep to the protocol");
  }
  if (sequence <= incoming.received) return;  // a repeated message
  incoming.received = sequence;
  incoming.bytes_since_ack += message.num_bytes();
  const std::int64_t now = around_->now_ns();
  if (incoming.bytes_since_ack >= kAckAfterBytes) {
    acknowledge(incoming);
  } else if (incoming.ack_at_ns == 0) {
    incoming.ack_at_ns = now + nanoseconds(kAckWithin_s);
    arm(incoming.ack_at_ns);
  }
  if (message.kind == static_cast<std::uint16_t>(OwnKind::kPing)) return;
  if (message.kind == static_cast<std::uint16_t>(OwnKind::kGoodBye)) {
    acknowledge(incoming);
    return gone(incoming.worker, true, "it has left");
  }
  message.head.erase(message.head.begin(), message.head.begin() + kSequenceBytes);
  events_.on_message(incoming.worker, std::move(message));
}

void Endpoint::acknowledge(Incoming& incoming) {
  incoming.bytes_since_ack = 0;
  incoming.ack_at_ns = 0;
  if (incoming.connection == 0) return;
  send_own(incoming.connection, message_of(OwnKind::kAck, Ack{incoming.received}));
}

void Endpoint::on_closed(wire::ConnectionId connection, wire::CloseCause cause, const std::string& reason) {
  const auto in = incoming_connections_.find(connection);
  if (in != incoming_connections_.end()) {
    Incoming& incoming = incoming_.at(in->second);
    incoming.connection = 0;
    incoming.ack_at_ns = 0;
    const WorkerId worker = incoming.worker;
    incoming_connections_.erase(in);
    // Its process may have ended. The outgoing link detects this.
    if (!good_bye_) watch(worker);
    return;
  }
  const auto out = outgoing_connections_.find(connection);
  if (out == outgoing_connections_.end()) return;
  Link& link = links_.at(out->second);
  outgoing_connections_.erase(out);
  link.connection = 0;
  link.repeat_at_ns = 0;
  link.last_reason = reason;
  const std::int64_t now = around_->now_ns();
  if (link.broken_since_ns == 0) link.broken_since_ns = now;
  const double patience_s =
      cause == wire::CloseCause::kSilent ? options_.silent_after_s : options_.lost_after_s;
  if (now - link.broken_since_ns > nanoseconds(patience_s)) {
    return gone(link.worker, false, link.last_reason);
  }
  link.state = Link::State::kWaiting;
  link.retry_at_ns = now + nanoseconds(link.retry_s);
  link.retry_s = std::min(2 * link.retry_s, kLastRetry_s);
  arm(link.retry_at_ns);
}

void Endpoint::look_at(Link& link, std::int64_t now_ns) {
  using State = Link::State;
  if (link.state == State::kWaiting) {
    if (now_ns >= link.retry_at_ns) return connect(link);
    arm(link.retry_at_ns);
  }
  if (link.state == State::kMeeting) {
    const std::int64_t until = link.broken_since_ns + nanoseconds(options_.silent_after_s);
    if (now_ns >= until) return gone(link.worker, false, "its process takes connections and does not answer");
    if (now_ns >= link.repeat_at_ns) repeat(link);
    arm(std::min(until, link.repeat_at_ns));
  }
  if (link.state != State::kOpen) return;
  if (!link.unacknowledged.empty()) {
    // Bytes that are still here have wire's time limit: a long message takes long.
    if (around_->network().waiting_bytes(link.connection) > 0) {
      link.unacknowledged.front().since_ns = now_ns;
      link.repeat_at_ns = now_ns + nanoseconds(link.repeat_s);
    }
    const std::int64_t until = link.unacknowledged.front().since_ns + nanoseconds(options_.silent_after_s);
    if (now_ns >= until) {
      return gone(link.worker, false,
                  text("it has not taken what was sent to it for ", options_.silent_after_s,
                       " s: it is frozen, or its host is out of reach"));
    }
    if (now_ns >= link.repeat_at_ns) repeat(link);
    return arm(std::min(until, link.repeat_at_ns));
  }
  if (!link.watched) return;
  const std::int64_t ping_at = link.quiet_since_ns + nanoseconds(options_.ping_every_s);
  if (now_ns < ping_at) return arm(ping_at);
  send(link.worker, {.kind = static_cast<std::uint16_t>(OwnKind::kPing)});
}

void Endpoint::gone(WorkerId worker, bool left, std::string reason) {
  if (!gone_.insert(worker).second) return;
  const auto link = links_.find(worker);
  if (link != links_.end()) {
    if (link->second.connection != 0) {
      around_->network().close(link->second.connection);
      outgoing_connections_.erase(link->second.connection);
    }
    links_.erase(link);
  }
  const auto incoming = incoming_.find(worker);
  // A worker that has left closes its connections itself, after the acknowledgement.
  if (incoming != incoming_.end() && incoming->second.connection != 0 && !left) {
    around_->network().close(incoming->second.connection);
  }
  if (incoming != incoming_.end()) {
    incoming_connections_.erase(incoming->second.connection);
    incoming_.erase(incoming);
  }
  events_.on_gone(worker, left, reason);
}

void Endpoint::say_good_bye() {
  if (std::exchange(good_bye_, true)) return;
  std::vector<WorkerId> met;
  for (const auto& [worker, link] : links_) met.push_back(worker);
  for (const WorkerId worker : met) send(worker, {.kind = static_cast<std::uint16_t>(OwnKind::kGoodBye)});
}

bool Endpoint::all_acknowledged() const {
  return std::ranges::all_of(links_, [](const auto& each) { return each.second.unacknowledged.empty(); });
}

bool Endpoint::has_met(WorkerId worker) const {
  const auto found = links_.find(worker);
  return found != links_.end() && found->second.met;
}

std::size_t Endpoint::num_unacknowledged(WorkerId worker) const {
  const auto found = links_.find(worker);
  return found == links_.end() ? 0 : found->second.unacknowledged.size();
}

void Endpoint::wake_within(double seconds) { arm(around_->now_ns() + nanoseconds(seconds)); }

void Endpoint::arm(std::int64_t at_ns) {
  if (timer_ && timer_at_ns_ <= at_ns) return;
  if (timer_) around_->stop_timer(*timer_);
  timer_at_ns_ = at_ns;
  timer_ =
      around_->start_timer(static_cast<double>(std::max<std::int64_t>(at_ns - around_->now_ns(), 0)) * 1e-9);
}

void Endpoint::on_timer(wire::TimerId timer) {
  if (timer != timer_) return;
  timer_.reset();
  const std::int64_t now = around_->now_ns();
  for (auto& [worker, incoming] : incoming_) {
    if (incoming.ack_at_ns == 0) continue;
    if (now >= incoming.ack_at_ns) {
      acknowledge(incoming);
    } else {
      arm(incoming.ack_at_ns);
    }
  }
  std::vector<WorkerId> workers;
  for (const auto& each : links_) workers.push_back(each.first);
  for (const WorkerId worker : workers) {
    const auto found = links_.find(worker);
    if (found != links_.end()) look_at(found->second, now);
  }
  events_.on_tick();
}

}  // namespace trireme::rpc
