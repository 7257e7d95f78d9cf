#include "trireme/wire/call.h"

namespace trireme::wire {

const char* name(CallKind kind) {
  static constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather",
                                           "all_to_all", "broadcast",      "reduce",
                                           "gather",     "scatter",        "barrier"};
  return kNames[static_cast<std::size_t>(kind)];
}

CallShape shape_of(const Call& call, int rank, int size) {
  const bool is_root = rank == call.root;
  const std::size_t n = static_cast<std::size_t>(size);
  const std::size_t mine = static_cast<std::size_t>(rank);
  switch (call.kind) {
    case CallKind::kAllReduce:
      return {.exposes = true, .takes = true, .reduces = true};
    case CallKind::kReduceScatter:
      return {.exposes = true, .takes = true, .reduces = true, .num_parts = n, .part_taken = mine};
    case CallKind::kAllGather:
      return {.exposes = true, .takes = true};
    case CallKind::kAllToAll:
      return {.exposes = true, .takes = true, .num_parts = n, .part_taken = mine};
    case CallKind::kBroadcast:
      return {.exposes = is_root, .takes = !is_root, .only_source = call.root};
    case CallKind::kReduce:
      return {.exposes = true, .takes = is_root, .reduces = true};
    case CallKind::kGather:
      return {.exposes = true, .takes = is_root};
    case CallKind::kScatter:
      return {
          .exposes = is_root, .takes = true, .num_parts = n, .part_taken = mine, .only_source = call.root};
    case CallKind::kBarrier:
      break;
  }
  return {};
}

}  // namespace trireme::wire
