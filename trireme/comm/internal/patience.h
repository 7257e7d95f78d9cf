#pragma once
// Whether the ranks that an operation waits for are worth waiting for. Ranks that wait form a graph: waiting
// for a rank that itself waits for a slow one is right, waiting in a circle is a deadlock. Pure.

#include <vector>

namespace trireme::comm {

/// State of a rank at one moment.
struct WaitStatus {
  bool lost = false;           ///< dead, gone, stopped or silent: nothing will come from it
  double idle_s = 0;           ///< since it was seen to make progress, or looked at first
  bool made_progress = true;   ///< it was seen to
  bool waits = false;          ///< in an operation
  std::vector<int> waits_for;  ///< world ranks that have not come to that operation
};

struct Verdict {
  /// From the awaited rank, through those it waits for, to the one that caused it; empty: there is none.
  std::vector<int> chain;
  bool in_circle = false;  ///< the last of the chain waits for an earlier one, or for the rank that asks
  std::vector<int> slow;   ///< when no rank caused it: the ranks that make progress, and delay all others
};

/// `ranks`: by world rank. `missing`: those that `me` waits for. A rank may idle for `patience_s`.
Verdict judge(int me, const std::vector<int>& missing, const std::vector<WaitStatus>& ranks,
              double patience_s);

}  // namespace trireme::comm
