#pragma once
// Leader election among the launchers of an elastic job. etcd decides it, and keeps the state for the next
// leader: the leader's record of the job, and the numbers that hosts have had. Not thread-safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "trireme/wire/node.h"

namespace trireme::etcd {

struct JobLeadershipOptions {
  wire::Address store;  ///< "etcd://HOST:PORT,HOST:PORT/PREFIX"; the prefix belongs to the job
  double lease_s = 3;   ///< a leader that is lost has a successor that much later; whole seconds, 2 or more
  /// Called by a thread of its own: etcd does not answer.
  std::function<void(const std::string& line)> trouble = [](const std::string&) {};
};

class JobLeadership {
 public:
  /// Throws InvalidArgument for an address that is none.
  explicit JobLeadership(JobLeadershipOptions options);
  /// Gives the leadership up.
  ~JobLeadership();
  JobLeadership(const JobLeadership&) = delete;
  JobLeadership& operator=(const JobLeadership&) = delete;

  /// The lowest number, from 0, that no host of the job has had. Throws CommError.
  int claim_number();
  /// The value that was given first under that name. Throws CommError.
  std::string agree(const std::string& name, const std::string& value);

  /// From now on this process may become the leader, which others find at that address. Called again: at
  /// another one.
  void campaign(const wire::Address& address);
  /// Gives the leadership up, and does not get it again.
  void stand_down();
  /// A number of the present leadership of this process; 0 as soon as another process may lead.
  std::int64_t term() const;
  /// The leader's address, as last read; empty: there is none, or it is not known yet.
  wire::Address leader() const;

  /// The record that the present or a former leader has saved; nothing: this one is the first. Call it on the
  /// leader. Throws CommError: etcd does not answer, or another process leads.
  std::optional<std::string> load();
  /// Replaces it. Throws as load() does; it may have happened then.
  void save(const std::string& record);
  /// The job has ended: removes all that etcd has of it, and keeps `how` for an hour. Call it on the leader.
  void end(const std::string& how);
  /// The last end of a job with this prefix; nothing: none within the hour. Throws CommError.
  std::optional<std::string> last_end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::etcd
