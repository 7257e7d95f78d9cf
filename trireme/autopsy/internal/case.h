#pragma once
// The evidence prepared for the rows of the table: waits between ranks, and the ranks that may have caused a
// stall. Preparing takes time in proportion to the ranks and to the ranks that they name.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
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
  /// Ranks that other ranks wait for and that wait for none, first the one that stalls longest; where no rank
  /// waits, all that have not ended.
  const std::vector<const RankEvidence*>& suspects() const { return suspects_; }
  /// Ranks that wait for each other; empty: there is no cycle.
  const std::vector<int>& cycle() const { return cycle_; }
  /// Ranks that are waited for and of which there is no evidence.
  const std::vector<int>& unknown() const { return unknown_; }
  /// Ranks that wait for this one.
  std::vector<int> waiting_for(int rank) const;
  /// Whether there are any.
  bool is_waited_for(const RankEvidence& rank) const;

 private:
  /// Where a rank is, for the ranks that name none that they wait for: they wait for those that have not
  /// issued their operation.
  struct Place {
    int group = -1;  ///< by number of its name
    std::uint64_t number = 0;
    bool stands = false;
    bool guesses = false;  ///< it is in an operation and names no rank
  };

  const Place& place_of(const RankEvidence& rank) const;
  void find_places();
  void find_suspects();
  void find_slow();
  void find_cycle();
  bool is_behind(const Place& other, const Place& place) const;
  bool waits(const RankEvidence& rank) const;
  int first_waited_for_by(const RankEvidence& rank) const;

  const Evidence& evidence_;
  std::unordered_map<int, const RankEvidence*> by_number_;
  std::unordered_map<std::string_view, const HostEvidence*> hosts_;
  std::vector<Place> places_;                        ///< by position
  std::vector<std::vector<std::uint64_t>> numbers_;  ///< of all ranks in a group, in order
  std::map<int, std::uint64_t> guessed_;             ///< by group, the furthest operation that is waited in
  std::unordered_map<int, std::vector<int>> named_;  ///< a rank, and those that name it
  std::vector<const RankEvidence*> failed_, suspects_;
  std::vector<int> cycle_, unknown_;
};

/// Whether the rank has not ended for a reason of its own: it runs, was ended by its launcher, or gave up
/// waiting.
bool stands(const RankEvidence& rank);

}  // namespace trireme::autopsy
