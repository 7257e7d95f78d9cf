#pragma once
// One operation of a group in numbers: cheap to make and to compare between ranks; text only on demand.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/comm/dtype.h"
#include "trireme/comm/group.h"

namespace trireme::comm {

enum class OperationKind : std::uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kAllToAllCoalesced,
  kSend,
  kRecv,
  kBarrier,
};

/// Longer layouts are cut.
constexpr std::size_t kMaxLayoutCharacters = 1000;

struct Operation {
  std::uint64_t number = 0;
  /// The number by which it is compared with operations of other ranks: its position among the group's
  /// collectives, or among the sends to, or receives from, its peer.
  std::uint64_t order = 0;
  OperationKind kind = OperationKind::kBarrier;
  at::ScalarType dtype = at::ScalarType::Undefined;  ///< Undefined for barrier
  /// Of the part of one rank; of the whole where `rows` are given; all_to_all_coalesced: the number of pairs.
  std::int64_t numel = 0;
  int peer = -1;
  ReduceOp reduce = ReduceOp::kSum;
  /// all_to_all_coalesced: the dtypes of the pairs, "f32*2,i64"; reduce_scatter and all_gather of unequal
  /// parts: the rows of the ranks, "3,0,2"; otherwise empty.
  std::string layout = {};
  OperationRecord::State state = OperationRecord::State::kIssued;
  double issued_s = 0;
  double done_s = 0;

  OperationRecord record() const;
};

constexpr bool is_collective(OperationKind kind) {
  return kind != OperationKind::kSend && kind != OperationKind::kRecv;
}
constexpr bool reduces(OperationKind kind) {
  return kind == OperationKind::kAllReduce || kind == OperationKind::kReduceScatter ||
         kind == OperationKind::kReduce;
}

const char* name_of(OperationKind kind);
/// "f32", "bf16", "i64", ...
const char* name_of(ReduceOp op);

/// Writes "all_reduce #57 of group world, 6553600 f32, running" without allocating; returns its length.
std::size_t format_status(const Operation& operation, const std::string& group, char* out, std::size_t space);

}  // namespace trireme::comm
