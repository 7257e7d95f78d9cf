#pragma once
// Two hosts on one machine: network namespaces that are joined by a cable (a veth pair). Each also has its
// own loopback and a second interface that leads nowhere. So a program must find the address by which the
// other host reaches it. Needs root and iproute2. unavailable_because() says what is missing. Programs in the
// hosts must end before the object is destroyed. Not thread-safe.

#include "tests/support/namespace_hosts.h"

namespace trireme::test {

class TwoHosts : public NamespaceHosts {
 public:
  TwoHosts();
  ~TwoHosts();

  /// From now on no frame reaches the other host, and neither does the end of a connection.
  void cut_cable() const;

 private:
  std::string create() const;
};

}  // namespace trireme::test
