#pragma once
// The all-reduce of a group for each size. It is the list of transfers that is the fastest by formula
// (all_reduce_cost.h) with the group's own alpha and beta. If another library was measured as faster, it is
// that library's. For a few sizes the best lists are run, too, and their times correct the formulas near that
// size. All ranks measure together and have the same numbers, so all choose the same.

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/topology/exchange.h"

namespace trireme::topology {

struct AllReduceChoice {
  /// The same all-reduce by several lists of transfers, and by the other library.
  struct Comparison {
    double bytes = 0;
    std::vector<Estimate> lists;  ///< those that were measured; at least one
    std::optional<double> other_s = {};
  };

  int ranks = 1;
  MessageCost cost = {};                     ///< measured; gamma is in beta
  int lanes = 1;                             ///< connections between any two with which it was measured
  std::vector<Comparison> comparisons = {};  ///< none: the formulas count as they are
  std::optional<Algorithm> forced = {};      ///< for any measurement

  /// None: the other library's. The comparison of the nearest size counts, by ratio. Where the other library
  /// was faster it is taken. Else the best of the lists that were measured there is taken, each by its
  /// formula plus its measured excess.
  std::optional<Algorithm> of(double bytes) const;
};

/// One line, and back: the same choice for every size, on any machine. Throws InvalidArgument for a malformed
/// text.
std::string to_text(const AllReduceChoice& choice);
AllReduceChoice all_reduce_choice_from(const std::string& text);

/// For people: "direct below 8.0 KiB, ring above"; `other` names the other library.
std::string describe(const AllReduceChoice& choice, const std::string& other);

/// An all-reduce, a sum in place, of another library between the same ranks.
using OtherAllReduce = std::function<void(std::span<float>)>;

/// Gives the exchange that many lanes; collective.
using SetLanes = std::function<void(int)>;
/// As many as are tried over a long link.
inline constexpr int kManyLanes = 4;

/// Collective; the same on every rank. `other` and `set_lanes` may be empty. Takes some ten milliseconds or,
/// over long links, some tens of latencies. With `set_lanes` a link on which a message takes more than a
/// millisecond is tried with several connections, too, which stay where they are faster: one connection is
/// limited by its window there, and slow after idle time. Throws the exceptions of the exchange, and of the
/// other functions.
AllReduceChoice measure_choice(Exchange& exchange, const OtherAllReduce& other, const SetLanes& set_lanes,
                               const Deadline& deadline);

}  // namespace trireme::topology
