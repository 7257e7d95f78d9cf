#pragma once
// Two hosts on one machine: network namespaces joined by a cable (a veth pair), each with a loopback of its
// own and a second interface that leads nowhere, so that a program has to find out by which address the other
// host reaches it. Needs root and iproute2; unavailable_because() says what is missing. What runs there has
// to end before the object does. Not thread-safe.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/temporary_folder.h"

namespace trireme::test {

class TwoHosts {
 public:
  TwoHosts();
  ~TwoHosts();
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  /// Empty when the hosts are there.
  const std::string& unavailable_because() const { return unavailable_because_; }
  /// Starts `trireme launch -n ranks -- command` on each host, as one world.
  std::vector<std::unique_ptr<ChildProcess>> launch(int ranks, const std::vector<std::string>& command) const;
  /// What has gone into the cable at that end so far, with all headers.
  std::int64_t bytes_sent(int host) const;
  /// From now on nothing arrives at the other host any more, and no end of a connection either.
  void cut_cable() const;

 private:
  std::string create() const;
  std::string name(int host) const;

  std::string unavailable_because_;
  TemporaryFolder folder_;  ///< with the secret of the job
};

}  // namespace trireme::test
