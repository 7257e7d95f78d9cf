#pragma once
// Hosts on one machine that are network namespaces: the common part of two_hosts.h and switched_hosts.h. They
// share kernel, processes and files, but not the network. Programs in them must end before the object is
// destroyed. Not thread-safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/temporary_folder.h"

namespace trireme::test {

class NamespaceHosts {
 public:
  NamespaceHosts(const NamespaceHosts&) = delete;
  NamespaceHosts& operator=(const NamespaceHosts&) = delete;

  int num_hosts() const { return num_hosts_; }
  std::string address(int host) const { return network_ + std::to_string(host + 1); }
  /// Empty if the hosts are available.
  const std::string& unavailable_because() const { return unavailable_because_; }
  /// Starts `trireme launch -n ranks -- command` on each host, as one world.
  std::vector<std::unique_ptr<ChildProcess>> launch(int ranks, const std::vector<std::string>& command) const;
  /// The same on one host only, with these options of `trireme launch`.
  std::unique_ptr<ChildProcess> launch_on(int host, int ranks, const std::vector<std::string>& options,
                                          const std::vector<std::string>& command) const;
  /// Starts any program on one host.
  std::unique_ptr<ChildProcess> start_on(int host, const std::vector<std::string>& command) const;
  /// A file with the secret of a job.
  std::string secret_file() const { return (folder_ / "secret").string(); }
  /// The first words of a command that runs on one host.
  std::vector<std::string> entrance(int host) const { return {"ip", "netns", "exec", name(host)}; }
  /// Calls `body` on a thread whose new sockets belong to that host, and waits for its end.
  void on_host(int host, const std::function<void()>& body) const;
  /// Bytes that have been sent into the cable at that end so far, with all headers.
  std::int64_t bytes_sent(int host) const;

 protected:
  /// `network`: its first three numbers, "10.77.0.".
  NamespaceHosts(int num_hosts, std::string network);
  ~NamespaceHosts() = default;

  std::string name(int host) const;

  const int num_hosts_;
  const std::string network_;
  const std::string prefix_;  ///< prefix of the namespaces
  std::string unavailable_because_;

 private:
  TemporaryFolder folder_;  ///< contains the secret of the job
};

}  // namespace trireme::test
