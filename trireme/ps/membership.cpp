#include "trireme/ps/internal/membership.h"

#include <algorithm>
#include <utility>

namespace trireme::ps {

namespace {

constexpr std::int64_t kPatience_ns = 1'500'000'000;  // below CoordinatorOptions::silence_s
constexpr int kQuickTries = 4;                        // later ones take longer: name lookup may be slow
constexpr int kMostPatience = 8;

}  // namespace

std::int64_t Membership::patience_ns() const {
  return kPatience_ns * std::clamp(num_silent_ - kQuickTries + 2, 1, kMostPatience);
}

void Membership::on_tick(const std::function<Heartbeat()>& heartbeat) {
  const std::int64_t now = surroundings_->now_ns();
  // After a pause of this process, its messages are still unread. So the pause counts as one heartbeat at
  // most.
  silence_ns_ += std::min(now - std::exchange(tick_ns_, now), heartbeat_ns_);
  if (connection_ != 0 && silence_ns_ > patience_ns()) {
    surroundings_->network().close(std::exchange(connection_, 0));
    is_connected_ = false;
    ++num_silent_;
  }
  if (connection_ == 0) {
    connection_ = surroundings_->network().connect(coordinator_);
    silence_ns_ = 0;
  }
  if (!is_connected_ || now < beat_ns_) return;
  beat_ns_ = now + heartbeat_ns_;
  Heartbeat sent = heartbeat();
  sent.map_version = map_.version;
  sent.sent_ns = now;
  surroundings_->network().send(connection_, message_of(sent, {}, kUrgent));
}

bool Membership::on_connected(wire::ConnectionId connection) {
  if (connection != connection_) return false;
  is_connected_ = true;
  beat_ns_ = 0;
  return true;
}

bool Membership::on_closed(wire::ConnectionId connection) {
  if (connection != connection_) return false;
  is_connected_ = false;
  connection_ = 0;
  return true;
}

void Membership::send(wire::Message message) {
  if (is_connected_) surroundings_->network().send(connection_, std::move(message));
}

Membership::Taken Membership::take(const wire::Message& message) {
  silence_ns_ = 0;
  num_silent_ = 0;
  if (const auto reply = head_of<HeartbeatReply>(message)) {
    last_reply_ = *reply;
    // The coordinator's lease began when it answered, which was after this heartbeat was sent.
    lease_until_ns_ =
        std::max(lease_until_ns_, reply->sent_ns + static_cast<std::int64_t>(reply->lease_s * 1e9));
    return Taken::kReply;
  }
  if (message.kind != static_cast<std::uint16_t>(MessageKind::kMapChange)) return Taken::kNo;
  auto change = wire::decode<MapChange>(message.body.bytes());
  if (!change) return Taken::kMalformed;
  if (map_.apply(*change)) {
    last_change_ = std::move(*change);
    return Taken::kMap;
  }
  // A gap: the next heartbeat contains this version, and the reply brings the missing changes.
  if (change->to > map_.version) beat_soon();
  return Taken::kReply;
}

}  // namespace trireme::ps
