#pragma once
// Two hosts on one machine: network namespaces joined by a cable (a veth pair), each with a loopback of its
// own and a second interface that leads nowhere, so that a program has to find out by which address the other
// host reaches it. Needs root and iproute2; unavailable_because() says what is missing. What runs there has
// to end before the object does. Not thread-safe.

#include "tests/support/namespace_hosts.h"

namespace trireme::test {

class TwoHosts : public NamespaceHosts {
 public:
  TwoHosts();
  ~TwoHosts();

  /// From now on nothing arrives at the other host any more, and no end of a connection either.
  void cut_cable() const;

 private:
  std::string create() const;
};

}  // namespace trireme::test
