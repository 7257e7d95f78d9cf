#pragma once
// The evidence prepared for the rows of the table: who waits for whom, and which ranks may have caused a
// stall.

#include <string>
#include <vector>

#include "trireme/autopsy/evidence.h"

namespace trireme::autopsy {

class Case {
 public:
  explicit Case(const Evidence& evidence);

  const Evidence& evidence() const { return evidence_; }
  const std::vector<RankEvidence>& ranks() const { return evidence_.ranks; }
  /// Null for a rank of which there is no evidence.
  const RankEvidence* find(int rank) const;
  const HostEvidence* host_of(const RankEvidence& rank) const;

  /// Ranks that ended by themselves and not well, first the one that ended first.
  const std::vector<const RankEvidence*>& failed() const { return failed_; }
  /// Ranks that other ranks wait for and that wait for none, first the one that stands still longest; where
  /// no rank waits, all that have not ended.
  const std::vector<const RankEvidence*>& suspects() const { return suspects_; }
  /// Ranks that wait for each other; empty: there is no cycle.
  const std::vector<int>& cycle() const { return cycle_; }
  /// Ranks that are waited for and of which there is no evidence.
  const std::vector<int>& unknown() const { return unknown_; }
  /// Ranks that wait for this one.
  std::vector<int> waiting_for(int rank) const;

 private:
  void find_suspects();
  std::vector<int> waited_for_by(const RankEvidence& rank) const;

  const Evidence& evidence_;
  std::vector<const RankEvidence*> failed_, suspects_;
  std::vector<int> cycle_, unknown_;
};

/// "12" of "all_reduce #12 of group world, 64 f32, running", and 0 where there is none.
std::uint64_t operation_number(const std::string& operation);
/// Whether the operation has been issued, and has not ended well.
bool is_open(const std::string& operation);
/// Whether the rank has not ended for a reason of its own: it runs, was ended by its launcher, or gave up
/// waiting.
bool stands(const RankEvidence& rank);

}  // namespace trireme::autopsy
