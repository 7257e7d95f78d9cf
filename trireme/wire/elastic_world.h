#pragma once
// The worlds of an elastic job, one after the other: the launcher writes each into the job's store, and the
// processes of the job read there which rank they have. A process that has lost its world writes that it
// waits, with the sizes of worlds that its program can run in. A world has a generation: 0 for the first.
// Values and their text; not thread-safe.

#include <string>
#include <vector>

namespace trireme::wire {

/// One process of a job.
struct ElasticMember {
  std::string id;  ///< unique in the job: letters, digits, '.' and '-'
  int node = 0;    ///< host of the job, from 0

  friend bool operator==(const ElasticMember&, const ElasticMember&) = default;
};

/// Ranks and what they share.
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

std::string to_text(const ElasticWorld& world);
std::string to_text(const WaitingMember& member);
/// Throw CommError for a text that is none.
ElasticWorld parse_elastic_world(const std::string& text);
WaitingMember parse_waiting_member(const std::string& text);

/// Keys in the job's store. `generation`: of the world; of the world that is waited for.
std::string elastic_world_key(int generation);
std::string waiting_member_key(int generation, const std::string& id);
/// There once a rank has lost the world of that generation.
std::string lost_world_key(int generation);
/// What became of the rendezvous of a world: whoever sets it first decides. "complete", or why it failed.
std::string rendezvous_outcome_key(int generation);

}  // namespace trireme::wire
