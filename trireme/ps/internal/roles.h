#pragma once
// The identity with which a peer may send. Its role and its name are authenticated where it has a certificate
// or the key of a role.

#include <algorithm>
#include <string>

#include "trireme/ps/messages.h"
#include "trireme/wire/node.h"

namespace trireme::ps {

/// A name that is a number is that worker's alone: "worker.3". With another name it may be any of them.
inline bool may_be_worker(const wire::PeerIdentity& peer, WorkerId worker) {
  const bool is_number = std::ranges::all_of(peer.name, [](char c) { return c >= '0' && c <= '9'; });
  return peer.role == "worker" && (!is_number || peer.name.empty() || peer.name == std::to_string(worker));
}

/// Of messages that name their sender.
template <class Head>
bool may_send(const wire::PeerIdentity& peer, const Head& head) {
  if constexpr (requires { head.life; }) {
    return may_be_worker(peer, head.life.worker);
  } else {
    return true;
  }
}
inline bool may_send(const wire::PeerIdentity& peer, const Heartbeat& heartbeat) {
  return heartbeat.role == Role::kServer ? peer.role == "server" : may_be_worker(peer, heartbeat.worker);
}

}  // namespace trireme::ps
