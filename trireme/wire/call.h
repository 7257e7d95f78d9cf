#pragma once
// A rank's request to its group: one collective operation, as data. Every collective is one rule: each rank
// exposes its input as parts of elements, and takes certain parts of others (CallShape). A value.
//   all_reduce      exposes 1 part,  all take the reduction of it
//   reduce_scatter  exposes n parts, rank r takes the reduction of part r
//   all_gather      exposes 1 part,  all take it from all ranks
//   all_to_all      exposes n parts, rank r takes part r of all ranks
//   broadcast, scatter: only the root exposes (1, n parts); reduce, gather: only the root takes

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trireme/wire/element.h"

namespace trireme::wire {

/// The collective operations, by MPI's names.
enum class CallKind : std::uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kBarrier,
};

/// "all_reduce", ...
const char* name(CallKind kind);

struct Call {
  CallKind kind = CallKind::kBarrier;
  Element element = Element::kF32;
  Reduction reduction = Reduction::kSum;
  int root = -1;            ///< for broadcast, reduce, gather, scatter
  std::uint64_t count = 0;  ///< elements of one part (unequal all_to_all: not used)

  const std::byte* input = nullptr;  ///< parts one after the other; unused where the rank exposes nothing
  std::byte* output = nullptr;       ///< destination, by source; may be the input for all_reduce
  // Parts that are not contiguous: addresses by part; then `input` or `output` is not used.
  std::vector<const std::byte*> input_parts{};
  std::vector<std::byte*> output_parts{};
  // all_to_all with unequal parts: n + 1 ascending positions in elements each, else empty.
  std::vector<std::uint64_t> input_offsets{};
  std::vector<std::uint64_t> output_offsets{};
};

/// The ranks that expose and take parts in a call: the table at the top of this page.
struct CallShape {
  bool exposes = false;        ///< this rank's input is read by others
  bool takes = false;          ///< this rank gets a result
  bool reduces = false;        ///< its result is the reduction over all ranks
  std::size_t num_parts = 1;   ///< parts that an exposing rank exposes
  std::size_t part_taken = 0;  ///< number of the part that this rank takes of each source
  int only_source = -1;        ///< the one rank that exposes; -1 when all do
};
/// Parts that rank `rank` of `size` exposes and takes in that call.
CallShape shape_of(const Call& call, int rank, int size);

}  // namespace trireme::wire
