#pragma once
// Time of an all-reduce between hosts, by formula, for n ranks with S bytes each. alpha: seconds of a
// message; beta: seconds of a byte in transfer; gamma: seconds of a byte that is added up. Formulas: Thakur,
// Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH" (2005), section 4.5.
// For numbers of ranks that are no power of two, Rabenseifner's fold is added. Direct and two shots are not
// theirs: a rank's messages to all others are in transfer at once. So alpha counts once, and bytes leave one
// after the other. Pure; thread-safe.

#include <string>
#include <string_view>
#include <vector>

namespace trireme::topology {

enum class Algorithm { kRing, kHalvingDoubling, kTree, kDirect, kTwoShot, kLevels };

/// Those that any members can take: all but kLevels, which is that of two shots where there is one level.
const std::vector<Algorithm>& algorithms();
/// "ring", "halving_doubling", "tree", "direct", "two_shot", "levels".
std::string name_of(Algorithm algorithm);
/// Throws InvalidArgument that suggests the nearest.
Algorithm parse_algorithm(std::string_view name);
/// The formula, as people write it: for `ranks`, as folding shows only there.
std::string formula_of(Algorithm algorithm, int ranks);

struct MessageCost {
  double alpha_s = 0;           ///< of a message, for any size
  double beta_s_per_byte = 0;   ///< on the way
  double gamma_s_per_byte = 0;  ///< added up by the receiver
};

/// 0 for one rank. Throws InvalidArgument for none.
double all_reduce_s(Algorithm algorithm, int ranks, double bytes, const MessageCost& cost);

/// Expected time of an all-reduce by one algorithm.
struct Estimate {
  Algorithm algorithm = Algorithm::kRing;
  double seconds = 0;
};

/// Of all algorithms, the fastest first; of two that take the same the one that algorithms() names first.
std::vector<Estimate> estimate_all_reduce(int ranks, double bytes, const MessageCost& cost);

}  // namespace trireme::topology
