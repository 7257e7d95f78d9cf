#pragma once
// Leader election: the leader is the process that makes the leader's key, which lives as long as a lease that
// its maker keeps alive. A thread of its own campaigns, keeps the lease, and campaigns again when it is lost.
// The key's value is the address where members find the leader. Thread-safe.

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "trireme/etcd/internal/client.h"
#include "trireme/etcd/internal/term.h"

namespace trireme::etcd {

struct ElectionOptions {
  std::vector<wire::Endpoint> members;
  std::string key;
  std::string address;            ///< of this candidate
  double lease_s = 5;             ///< whole seconds are used, and no less than 2: etcd has no shorter ones
  double look_s = 0.5;            ///< interval at which waiting candidates check for the leader
  double try_s = 1;               ///< for an answer of one member
  std::function<void()> changed;  ///< term() is another one
  std::function<void(const std::string& line)> trouble;  ///< for people
};

class Election {
 public:
  explicit Election(ElectionOptions options);
  /// Resigns.
  ~Election();
  Election(const Election&) = delete;
  Election& operator=(const Election&) = delete;

  /// Null while this process does not lead.
  std::shared_ptr<Term> term() const;
  /// The address of the leader, as last read; empty: there was none, or it has not been read yet.
  std::string leader() const;
  /// Another may lead now; this one campaigns again after a lease. No effect while it does not lead.
  void resign();
  /// Resigns, and only reads the leader from now on.
  void stand_down();

 private:
  void serve(std::stop_token stop);
  std::shared_ptr<Term> campaign();
  void keep(Term& term);
  void set(std::shared_ptr<Term> term);
  void give_back(const Term& term);
  void note_leader(std::string address);
  bool stands_down() const;
  void say(const std::string& trouble);

  const ElectionOptions options_;
  const std::int64_t lease_s_;
  Client client_;
  std::string last_trouble_;
  mutable std::mutex mutex_;
  std::condition_variable_any woken_;
  std::shared_ptr<Term> term_;
  std::string leader_;
  bool resigns_ = false, stands_down_ = false;
  std::jthread thread_;  ///< last: it uses all of the above
};

}  // namespace trireme::etcd
