#pragma once
// The worlds of an elastic job, one after the other: the launcher of the first host writes each into the
// job's store, and the processes of the job read there which rank they have. A process that has lost its
// world writes that it waits, with the sizes of worlds that its program can run in. A world has a generation:
// 0 for the first. Launchers write there which processes of their hosts live, and read the state of the job.
// Values and their text; not thread-safe.

#include <optional>
#include <string>
#include <vector>

namespace trireme::wire {

/// One process of a job.
struct ElasticMember {
  std::string id;  ///< unique in the job: its host, '.', then letters, digits and '-'
  int node = 0;    ///< host of the job, from 0

  friend bool operator==(const ElasticMember&, const ElasticMember&) = default;
};

/// Ranks and their common settings.
struct ElasticWorld {
  int generation = 0;
  std::vector<ElasticMember> ranks = {};  ///< by rank

  int size() const { return static_cast<int>(ranks.size()); }
  /// The rank of that process; -1: it is not in this world.
  int rank_of(const std::string& id) const;
  /// Its number among the ranks of its host, from 0, and how many those are.
  int local_rank_of(int rank) const;
  int local_size_of(int rank) const;
  friend bool operator==(const ElasticWorld&, const ElasticWorld&) = default;
};

/// A process that waits for its next world.
struct WaitingMember {
  std::vector<int> sizes;  ///< of worlds that its program can run in, rising; empty: any
  std::string cause;       ///< why it has lost its world; empty: it has had none yet

  friend bool operator==(const WaitingMember&, const WaitingMember&) = default;
};

/// State of a process.
enum class MemberState { kRunning, kDone, kFailed, kFailedForGood };

/// A process that a host has started, of the present world or a spare.
struct MemberReport {
  std::string id;
  MemberState state = MemberState::kRunning;
  int exit_code = 0;  ///< of the job, if the end of this process ends it

  friend bool operator==(const MemberReport&, const MemberReport&) = default;
};

/// Repeated report of a host's launcher: a host whose beat stays the same is lost.
struct HostReport {
  int beat = 0;
  int capacity = 1;         ///< ranks that the host takes
  bool is_leaving = false;  ///< its launcher was asked to stop
  std::vector<MemberReport> members = {};

  friend bool operator==(const HostReport&, const HostReport&) = default;
};

/// The end of a job, for all hosts.
struct JobEnd {
  int exit_code = 0;
  std::string reason = {};  ///< empty for exit code 0

  friend bool operator==(const JobEnd&, const JobEnd&) = default;
};

/// Added to the generation of a world that ranks are asked for, on a host that leaves the job.
inline constexpr int kHostLeaves = 1 << 30;

/// State that the launcher of the first host writes for those of all hosts.
struct JobState {
  int generation = -1;          ///< of the present world; -1: there is none yet
  bool wants_next = false;      ///< ranks of the present world are to leave it in good order
  int stop_signal = 0;          ///< for all ranks; 0: none
  std::optional<JobEnd> end{};  ///< once the job has ended

  friend bool operator==(const JobState&, const JobState&) = default;
};

std::string to_text(const ElasticWorld& world);
std::string to_text(const WaitingMember& member);
std::string to_text(const HostReport& report);
std::string to_text(const JobState& state);
/// Throw CommError for a text that is none.
ElasticWorld parse_elastic_world(const std::string& text);
WaitingMember parse_waiting_member(const std::string& text);
HostReport parse_host_report(const std::string& text);
JobState parse_job_state(const std::string& text);

/// Keys in the job's store. `generation`: of the world; of the world that is waited for.
std::string elastic_world_key(int generation);
std::string waiting_member_key(int generation, const std::string& id);
/// There once a rank has lost the world of that generation.
std::string lost_world_key(int generation);
/// Of the host with that number. Hosts are counted under kElasticHostsKey; the first is not.
std::string elastic_host_key(int node);
inline constexpr const char* kElasticHostsKey = "elastic/hosts";
inline constexpr const char* kJobStateKey = "elastic/job";
/// The start id of the job, for all its hosts: the folder of a run belongs to it.
inline constexpr const char* kJobStartKey = "elastic/start";
/// Result of the rendezvous of a world: the first writer decides. "complete", or the reason of the failure.
std::string rendezvous_outcome_key(int generation);

}  // namespace trireme::wire
