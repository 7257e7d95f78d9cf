#include "trireme/parallel/data/internal/low_rank_tensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>

#include <algorithm>

#include "trireme/compress/low_rank.h"
#include "trireme/parallel/data/internal/spans.h"

namespace trireme::parallel {
namespace {

/// Fraction of a column's length that can be rounding error when the column depends on the others; as on the
/// host.
constexpr double kMadeUp = 1e-6;

std::size_t columns_of(const at::Tensor& matrix) { return static_cast<std::size_t>(matrix.size(1)); }

/// Subtracts the projections on the orthonormal columns of `others`.
at::Tensor without(const at::Tensor& columns, const at::Tensor& others) {
  return columns.sub(at::mm(others, at::mm(others.t(), columns)));
}

at::Tensor length_of(const at::Tensor& columns) { return columns.square().sum(0, /*keepdim=*/true).sqrt(); }

struct Orthogonalised {
  at::Tensor column;  ///< of length 1
  at::Tensor is_made_up;
};

Orthogonalised orthogonalised(at::Tensor column, const at::Tensor& others) {
  at::Tensor is_made_up;
  for (int times = 0; times < 2; ++times) {
    const at::Tensor before = length_of(column);
    column = without(column, others);
    const at::Tensor left = length_of(column);
    // False for NaN, so that NaN stays visible.
    const at::Tensor too_short = left.le(before.mul(kMadeUp));
    is_made_up = is_made_up.defined() ? is_made_up.logical_or(too_short) : too_short;
    column = column.div(left);
  }
  return {column, is_made_up};
}

/// The first unit vector that is independent of `others`. With k others, one of the first k + 1 is.
at::Tensor unit_vector(const at::Tensor& others) {
  const std::int64_t count = std::min(others.size(1) + 1, others.size(0));
  const at::Tensor left = length_of(without(at::eye(others.size(0), count, others.options()), others));
  const at::Tensor along = left.gt(kMadeUp).to(at::kInt).argmax(1, /*keepdim=*/true);
  return at::arange(others.size(0), along.options()).unsqueeze(1).eq(along).to(others.scalar_type());
}

void orthogonalise_on_device(const at::Tensor& matrix) {
  const at::Tensor exact = matrix.to(at::kDouble);
  for (std::int64_t i = 0; i < matrix.size(1); ++i) {
    const at::Tensor others = exact.narrow(1, 0, i), column = exact.narrow(1, i, 1);
    const Orthogonalised usual = orthogonalised(column, others);
    const Orthogonalised instead = orthogonalised(unit_vector(others), others);
    column.copy_(at::where(usual.is_made_up, instead.column, usual.column));
  }
  at::Tensor(matrix).copy_(exact);
}

}  // namespace

void multiply(const at::Tensor& matrix, const at::Tensor& right, const at::Tensor& out) {
  if (!matrix.is_cpu()) {
    at::Tensor(out).copy_(at::mm(matrix, right));
    return;
  }
  compress::multiply(span_of(matrix), span_of(right), columns_of(right), span_of(out));
}

void multiply_turned(const at::Tensor& matrix, const at::Tensor& left, const at::Tensor& out) {
  if (!matrix.is_cpu()) {
    at::Tensor(out).copy_(at::mm(matrix.t(), left));
    return;
  }
  compress::multiply_turned(span_of(matrix), span_of(left), columns_of(left), span_of(out));
}

void multiply_transposed(const at::Tensor& left, const at::Tensor& right, const at::Tensor& out) {
  if (!left.is_cpu()) {
    at::Tensor(out).copy_(at::mm(left, right.t()));
    return;
  }
  compress::multiply_transposed(span_of(left), span_of(right), columns_of(right), span_of(out));
}

void orthogonalise(const at::Tensor& matrix) {
  if (!matrix.is_cpu()) return orthogonalise_on_device(matrix);
  compress::orthogonalise(span_of(matrix), columns_of(matrix));
}

}  // namespace trireme::parallel
