#include "trireme/ps/messages.h"

#include <array>

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
  static constexpr std::array<std::string_view, 12> kNames = {
      "none",          "timeout",      "wrong epoch", "not now",       "overloaded", "too large",
      "unknown table", "out of range", "malformed",   "declared dead", "data loss",  "not saved"};
  static_assert(kNames.size() == static_cast<std::size_t>(ErrorKind::kLast) + 1);
  const auto index = static_cast<std::size_t>(kind);
  return index < kNames.size() ? kNames[index] : "?";
}

}  // namespace trireme::ps
