#include "trireme/ps/messages.h"

#include <array>

#include "trireme/wire/node.h"

namespace trireme::ps {

std::string_view name_of(MessageKind kind) {
  static constexpr std::array<std::string_view, 24> kNames = {
      "?",           "Heartbeat", "HeartbeatReply", "MapChange", "CreateTable",  "TableCreated",
      "Ping",        "Pong",      "CaughtUp",       "Drained",   "Suspect",      "Request",
      "Reply",       "Pull",      "PullReply",      "Replicate", "ReplicateAck", "SnapshotPart",
      "SnapshotAck", "Status",    "StatusReply",    "BeginAnew", "Ticks",        "Replies"};
  static_assert(kNames.size() == static_cast<std::size_t>(MessageKind::kLast) + 1);
  const auto index = static_cast<std::size_t>(kind);
  return kNames[index < kNames.size() ? index : 0];
}

std::string_view name_of(ErrorKind kind) {
  static constexpr std::array<std::string_view, 13> kNames = {
      "none",         "timeout",   "wrong epoch",   "not now",   "overloaded", "too large",   "unknown table",
      "out of range", "malformed", "declared dead", "data loss", "not saved",  "unknown keys"};
  static_assert(kNames.size() == static_cast<std::size_t>(ErrorKind::kLast) + 1);
  const auto index = static_cast<std::size_t>(kind);
  return index < kNames.size() ? kNames[index] : "?";
}

bool is_sound(const Heartbeat& heartbeat) {
  constexpr std::size_t kMostText = 1024;
  constexpr double kMostWeight = 1e6;
  if (heartbeat.name.size() > kMostText || heartbeat.host.size() > kMostText) return false;
  if (heartbeat.role == Role::kWorker) return true;
  const bool has_weight = heartbeat.weight >= 1 / kMostWeight && heartbeat.weight <= kMostWeight;
  return has_weight && !heartbeat.name.empty() && heartbeat.address.size() <= kMostText &&
         wire::is_address(heartbeat.address);
}

}  // namespace trireme::ps
