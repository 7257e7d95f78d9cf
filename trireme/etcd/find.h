#pragma once
// Where the present coordinator is, asked of etcd.

#include <functional>

#include "trireme/wire/node.h"

namespace trireme::etcd {

/// `store` is "etcd://HOST:PORT,HOST:PORT/PREFIX". Throws InvalidArgument for another form, and CommError
/// when there is no leader or no member of etcd answers, with the tried addresses.
wire::Address find_coordinator(const wire::Address& store);

/// The same for NodeLoopOptions::look_up, so that a node's connections to an address of etcd go to the
/// current leader. It keeps the member of etcd that answered, and asks at most four times a second: a call
/// may wait that long. Thread-safe.
std::function<wire::Address(const wire::Address&)> look_up_in_etcd();

}  // namespace trireme::etcd
