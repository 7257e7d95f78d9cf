#pragma once
// Which all-reduce a group takes for which size: of the lists of transfers the one that the formulas
// (all_reduce_cost.h) say is the fastest with the group's own alpha and beta, or another library's, where
// that was measured as faster. All ranks have measured together and hold the same numbers, so all choose the
// same.

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/topology/exchange.h"

namespace trireme::topology {

struct AllReduceChoice {
  /// The same all-reduce by the list of transfers that the formulas prefer, and by the other library.
  struct Comparison {
    double bytes = 0;
    double list_s = 0;
    double other_s = 0;
  };

  int ranks = 1;
  MessageCost cost;                      ///< measured; gamma is in beta
  std::vector<Comparison> comparisons;   ///< by size; none: the lists are always taken
  std::optional<Algorithm> forced = {};  ///< whatever was measured

  /// None: the other library's. Between sizes that were compared the nearer one counts, as a ratio.
  std::optional<Algorithm> of(double bytes) const;
};

/// An all-reduce, a sum in place, of another library between the same ranks.
using OtherAllReduce = std::function<void(std::span<float>)>;

/// Collective; the same on every rank. Takes some ten milliseconds and some tens of latencies. Throws what
/// the exchange throws, and what `other` does.
AllReduceChoice measure_choice(Exchange& exchange, const OtherAllReduce& other, const Deadline& deadline);

}  // namespace trireme::topology
