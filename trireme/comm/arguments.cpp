#include "trireme/comm/internal/arguments.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/comm/dtype.h"

namespace trireme::comm {

void check_tensor(const char* operation, const char* name, const at::Tensor& tensor) {
  require(tensor.defined(), operation, ": the tensor '", name, "' is undefined");
  require(tensor.is_contiguous(), operation, ": the tensor '", name,
          "' is not contiguous: pass tensor.contiguous()");
}

void check_reduce(const char* operation, const at::Tensor& tensor, ReduceOp op) {
  require(op != ReduceOp::kAverage || tensor.is_floating_point(), operation, ": an average of ",
          name_of(tensor.scalar_type()), " is not defined: use kSum, or a floating point tensor");
}

void check_parts(const char* operation, const char* whole_name, const at::Tensor& whole,
                 const char* part_name, const at::Tensor& part, int size) {
  check_tensor(operation, whole_name, whole);
  check_tensor(operation, part_name, part);
  require(whole.scalar_type() == part.scalar_type(), operation, ": '", whole_name, "' is ",
          name_of(whole.scalar_type()), ", but '", part_name, "' is ", name_of(part.scalar_type()));
  require(whole.numel() == size * part.numel(), operation, ": '", whole_name, "' has ", whole.numel(),
          " elements; expected ", size, " ranks x ", part.numel(), " elements of '", part_name,
          "' = ", size * part.numel());
}

void check_rank(const char* operation, const char* role, int rank, const GroupParts& parts) {
  const int size = static_cast<int>(parts.world_ranks.size());
  require(rank >= 0 && rank < size, operation, ": ", role, " is ", rank, ", but group '", parts.name,
          "' has ", size, " ranks, 0 to ", size - 1);
}

void check_rows(const char* operation, const char* name, const at::Tensor& tensor,
                const std::vector<std::int64_t>& rows, int size) {
  require(tensor.dim() > 0, operation, ": the tensor '", name, "' has no rows to split: it has no dims");
  require(static_cast<int>(rows.size()) == size, operation, ": ", rows.size(), " splits of '", name,
          "' for a group of ", size, size == 1 ? " rank" : " ranks");
  std::int64_t sum = 0;
  for (const std::int64_t each : rows) {
    require(each >= 0, operation, ": a split of '", name, "' has ", each, " rows");
    sum += each;
  }
  require(sum == tensor.size(0), operation, ": the splits of '", name, "' add up to ", sum,
          " rows, and it has ", tensor.size(0));
}

void check_exchanged_rows(const char* operation, const at::Tensor& output, const at::Tensor& input,
                          const RowSplits& rows, int rank) {
  require(output.scalar_type() == input.scalar_type() && output.sizes().slice(1) == input.sizes().slice(1),
          operation, ": rows of 'output' are ", output.sizes().slice(1), " of ",
          name_of(output.scalar_type()), ", but those of 'input' are ", input.sizes().slice(1), " of ",
          name_of(input.scalar_type()));
  const auto me = static_cast<std::size_t>(rank);
  require(rows.to[me] == rows.from[me], operation, ": rank ", me, " sends itself ", rows.to[me],
          " rows, and expects ", rows.from[me]);
}

void check_rows_of_ranks(const char* operation, const char* whole_name, const at::Tensor& whole,
                         const char* part_name, const at::Tensor& part, const std::vector<std::int64_t>& rows,
                         const GroupParts& parts) {
  check_tensor(operation, whole_name, whole);
  check_tensor(operation, part_name, part);
  check_rows(operation, whole_name, whole, rows, static_cast<int>(parts.world_ranks.size()));
  const std::int64_t mine = rows[static_cast<std::size_t>(parts.rank)];
  require(part.dim() > 0 && part.size(0) == mine, operation, ": '", part_name, "' of rank ", parts.rank,
          " is ", part.sizes(), "; expected ", mine, " rows");
  require(whole.scalar_type() == part.scalar_type() && whole.sizes().slice(1) == part.sizes().slice(1),
          operation, ": rows of '", whole_name, "' are ", whole.sizes().slice(1), " of ",
          name_of(whole.scalar_type()), ", but those of '", part_name, "' are ", part.sizes().slice(1),
          " of ", name_of(part.scalar_type()));
}

std::string layout_of(const std::vector<std::int64_t>& rows) {
  std::string layout;
  for (const std::int64_t each : rows) layout += text(layout.empty() ? "" : ",", each);
  return layout.substr(0, kMaxLayoutCharacters);
}

void check_peer(const char* operation, const char* role, int peer, const GroupParts& parts) {
  check_rank(operation, role, peer, parts);
  require(peer != parts.rank, operation, ": ", role, " is ", peer, ", which is this rank itself");
}

std::vector<std::int64_t> numels_of(const at::Tensor& tensor, std::vector<std::int64_t> rows,
                                    std::size_t num_ranks) {
  if (rows.empty())
    return std::vector<std::int64_t>(num_ranks, tensor.numel() / static_cast<std::int64_t>(num_ranks));
  const std::int64_t of_row = tensor.numel() == 0 ? 0 : tensor.numel() / tensor.size(0);
  for (std::int64_t& each : rows) each *= of_row;
  return rows;
}

}  // namespace trireme::comm
