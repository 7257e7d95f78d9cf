#pragma once
// Real etcd processes on free ports of this host, with their data in a temporary folder. The constructor
// forks, so it must run before the test has threads.

#include <memory>
#include <string>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/temporary_folder.h"

namespace trireme::test {

class EtcdCluster {
 public:
  /// Whether etcd is installed on this machine.
  static bool is_installed();

  /// `address`: the address at which the members listen. `entrance`: first words of their commands, as those
  /// of NamespaceHosts. Throws std::runtime_error with etcd's output if the members do not start.
  explicit EtcdCluster(int num_members, std::string address = "127.0.0.1",
                       std::vector<std::string> entrance = {});

  /// "etcd://127.0.0.1:1234,.../PREFIX".
  std::string address(const std::string& prefix = "test") const;
  std::string member(int i) const;  ///< "ADDRESS:1234"
  int size() const { return static_cast<int>(members_.size()); }
  void kill(int i);
  void signal(int i, int number) { members_.at(static_cast<std::size_t>(i))->send_signal(number); }

 private:
  bool starts(int num_members);
  std::string at(int port) const;

  const std::string address_;
  const std::vector<std::string> entrance_;

  TemporaryFolder folder_;
  std::vector<int> ports_;
  std::vector<std::unique_ptr<ChildProcess>> members_;
};

}  // namespace trireme::test

/// For tests that need etcd.
#define TRIREME_NEEDS_ETCD()                       \
  if (!trireme::test::EtcdCluster::is_installed()) \
  GTEST_SKIP() << "etcd is not installed; tools/setup.sh test installs it"
