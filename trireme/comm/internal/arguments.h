#pragma once
// Checks of the arguments of a group's operations. Each throws InvalidArgument that names operation and
// argument, before the operation is published.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/comm/internal/group_state.h"

namespace trireme::comm {

void check_tensor(const char* operation, const char* name, const at::Tensor& tensor);
void check_reduce(const char* operation, const at::Tensor& tensor, ReduceOp op);
/// `whole` holds one part per rank.
void check_parts(const char* operation, const char* whole_name, const at::Tensor& whole,
                 const char* part_name, const at::Tensor& part, int size);
void check_rank(const char* operation, const char* role, int rank, const GroupParts& parts);
/// A rank of the group other than this one.
void check_peer(const char* operation, const char* role, int peer, const GroupParts& parts);
/// One number of rows for each rank, which add up to those of the tensor.
void check_rows(const char* operation, const char* name, const at::Tensor& tensor,
                const std::vector<std::int64_t>& rows, int size);
/// Rows of one kind, of which this rank sends itself as many as it expects.
void check_exchanged_rows(const char* operation, const at::Tensor& output, const at::Tensor& input,
                          const RowSplits& rows, int rank);

/// `part` is this rank's rows of `whole`, which has `rows[r]` rows for each rank r.
void check_rows_of_ranks(const char* operation, const char* whole_name, const at::Tensor& whole,
                         const char* part_name, const at::Tensor& part, const std::vector<std::int64_t>& rows,
                         const GroupParts& parts);
/// The rows as an operation's layout, "3,0,2", shortened.
std::string layout_of(const std::vector<std::int64_t>& rows);

/// Elements for each of so many ranks of a tensor with those rows; without rows, of equal parts.
std::vector<std::int64_t> numels_of(const at::Tensor& tensor, std::vector<std::int64_t> rows,
                                    std::size_t num_ranks);

}  // namespace trireme::comm
