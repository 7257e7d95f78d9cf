#include "trireme/comm/internal/reduce_rows.h"

namespace trireme::comm {
namespace {

void accumulate(at::Tensor& result, const at::Tensor& row, const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::MIN:
      result.copy_(result.minimum(row));
      return;
    case c10d::ReduceOp::MAX:
      result.copy_(result.maximum(row));
      return;
    case c10d::ReduceOp::PRODUCT:
      result.mul_(row);
      return;
    default:
      result.add_(row);
  }
}

}  // namespace

void reduce_rows(const at::Tensor& rows, const c10d::ReduceOp& op, at::Tensor result) {
  result.copy_(rows[0]);
  for (std::int64_t row = 1; row < rows.size(0); ++row) accumulate(result, rows[row], op);
  if (op == c10d::ReduceOp::AVG) result.div_(rows.size(0));
}

}  // namespace trireme::comm
