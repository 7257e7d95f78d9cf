#pragma once
// One leadership of this process: a key under a lease, identified by the revision that made it. Every write
// names that revision, so etcd rejects the writes of a leader whose key is gone. Other effects, such as
// promises to members, are bounded by holds(): it ends, by this process's own clock, before etcd gives the
// key to another. Thread-safe.

#include <atomic>
#include <string>

#include "trireme/base/clock.h"
#include "trireme/base/text.h"
#include "trireme/etcd/internal/client.h"

namespace trireme::etcd {

class Term {
 public:
  Term(std::string leader_key, Revision made_at, LeaseId lease, std::int64_t until_ns)
      : key_(std::move(leader_key)), made_at_(made_at), lease_(lease), until_ns_(until_ns) {}

  const std::string& key() const { return key_; }
  Revision made_at() const { return made_at_; }
  LeaseId lease() const { return lease_; }
  Transaction::Condition condition() const {
    return {.key = key_, .what = Transaction::Condition::What::kCreated, .is = made_at_};
  }

  /// A name that no other write has, of any leader.
  std::string next_write() { return text(made_at_, "-", ++num_writes_); }

  bool holds() const { return !is_lost_ && now_ns() < until_ns_; }
  void extend(std::int64_t until_ns) { until_ns_ = until_ns; }
  void lose() { is_lost_ = true; }

 private:
  const std::string key_;
  const Revision made_at_;
  const LeaseId lease_;
  std::atomic<std::int64_t> until_ns_;
  std::atomic<bool> is_lost_ = false;
  std::atomic<std::int64_t> num_writes_ = 0;
};

}  // namespace trireme::etcd
