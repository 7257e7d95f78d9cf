#pragma once
// Collectives as data: sender, receiver and elements of each transfer in each step. A transfer sends its
// sender's values at the start of the step. A rank that receives with `adds` ends the step with the sum of
// its values and of all that arrive for the element. They are added in rank order, its own included, so every
// rank ends with the same bits. At the end of an all-reduce every rank holds the sum over all. Halving and
// doubling: Rabenseifner 2004; the tree is binomial; the ring is Patarasuk and Yuan 2009 (with fewer elements
// than ranks some parts are empty, and nothing is sent for them). Direct sends all elements to all ranks,
// also known as one-shot; two shots are a reduce-scatter and an all-gather. Pure; thread-safe.

#include <cstdint>
#include <vector>

#include "trireme/topology/all_reduce_cost.h"
#include "trireme/topology/levels.h"

namespace trireme::topology {

struct Transfer {
  int step = 0;
  int from = 0;
  int to = 0;
  std::int64_t begin = 0;  ///< of the elements
  std::int64_t end = 0;
  bool adds = false;  ///< else it replaces the receiver's values
};

/// In the order of steps. None for one rank. Throws InvalidArgument for no rank or a negative `numel`.
std::vector<Transfer> all_reduce_steps(Algorithm algorithm, int ranks, std::int64_t numel);

/// By levels: neighbours add up first, and each sends the next level the sum of its part alone. So of S bytes
/// S go over the links of a site each way, and not S for each of its hosts. Each level takes two steps, one
/// on the way out and one back; one level is two shots. The rest as above.
std::vector<Transfer> all_reduce_steps(const Levels& levels, std::int64_t numel);

/// Where the part of a rank begins among `numel` elements that are cut evenly over the ranks; for the rank
/// after the last, where they end.
std::int64_t part_begin(int rank, int ranks, std::int64_t numel);

/// Each rank sends the part of every other to it, which adds them up: at the end each holds the sum of its
/// own part. One step, and no message waits for another. The rest as for all_reduce_steps().
std::vector<Transfer> reduce_scatter_steps(int ranks, std::int64_t numel);
/// Each rank sends its own part to all others. One step.
std::vector<Transfer> all_gather_steps(int ranks, std::int64_t numel);
/// The same by levels: over the links of a site goes of each part one sum, or one copy, where it would be one
/// for each of its hosts. A step for each part of the levels outside; one level is the above. Of a
/// reduce-scatter the parts of others hold sums of some at the end.
std::vector<Transfer> reduce_scatter_steps(const Levels& levels, std::int64_t numel);
std::vector<Transfer> all_gather_steps(const Levels& levels, std::int64_t numel);

/// Time of such a list where a step lasts as long as its busiest rank: alpha, and the bytes that it sends or
/// receives (both at once), and those that it adds up.
double seconds_of(const std::vector<Transfer>& steps, int ranks, double bytes_per_element,
                  const MessageCost& cost);

}  // namespace trireme::topology
