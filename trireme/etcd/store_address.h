#pragma once
// Place of a cluster's state in etcd: "etcd://HOST:PORT,HOST:PORT/PREFIX", the client ports of its members
// and the prefix of all of the cluster's keys. A value.

#include <string>
#include <vector>

#include "trireme/wire/node.h"
#include "trireme/wire/socket.h"

namespace trireme::etcd {

struct StoreAddress {
  std::vector<wire::Endpoint> members;
  std::string prefix;  ///< without a slash at either end

  /// Throws InvalidArgument, also for unsupported parts: TLS, names and passwords.
  static StoreAddress parse(const wire::Address& address);
  /// Whether it begins as one.
  static bool is_meant_by(const wire::Address& address);
  wire::Address text() const;
};

}  // namespace trireme::etcd
