// Message headers between the nodes of a parameter server: two bytes for the kind, then the header.
#include <cstring>

#include "tests/fuzz/reading.h"
#include "trireme/ps/messages.h"

using namespace trireme;

namespace {

/// Encoding a decoded header again gives the same bytes.
template <class Head>
void try_head(const wire::Message& message) {
  const auto head = ps::head_of<Head>(message);
  if (head && wire::encode(*head) != message.head) __builtin_trap();
}

/// The same for structures in message bodies.
template <class Body>
void try_body(const wire::Message& message) {
  const auto body = wire::decode<Body>(message.head);
  if (body && wire::encode(*body) != message.head) __builtin_trap();
}

template <class... Heads>
void try_heads(const wire::Message& message) {
  (try_head<Heads>(message), ...);
}

}  // namespace

extern "C" int fuzz_ps_messages(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  wire::Message message{.kind = static_cast<std::uint16_t>(data[0] | data[1] << 8),
                        .head = {begin + 2, begin + size}};
  try_heads<ps::Heartbeat, ps::HeartbeatReply, ps::CreateTable, ps::TableCreated, ps::BeginAnew, ps::Ping,
            ps::Pong, ps::CaughtUp, ps::Drained, ps::Suspect, ps::Request, ps::Reply, ps::Replies, ps::Ticks,
            ps::Pull, ps::PullReply, ps::Replicate, ps::ReplicateAck, ps::SnapshotPart, ps::SnapshotAck,
            ps::Status, ps::StatusReply>(message);
  if (const auto heartbeat = ps::head_of<ps::Heartbeat>(message)) ps::is_sound(*heartbeat);
  try_body<ps::MapChange>(message);
  try_body<ps::LogRecord>(message);
  return 0;
}
