#pragma once
// The steps of PowerSGD (compress/low_rank.h) on tensors of any device: on the CPU by its loops, elsewhere by
// tensor operations, whose sums differ by rounding. On a device nothing is read back. Matrices are f32,
// contiguous, and on one device. Functions without state; any thread.

#include <ATen/core/Tensor.h>

namespace trireme::parallel {

/// out = matrix right.
void multiply(const at::Tensor& matrix, const at::Tensor& right, const at::Tensor& out);
/// out = matrix^T left.
void multiply_turned(const at::Tensor& matrix, const at::Tensor& left, const at::Tensor& out);
/// out = left right^T.
void multiply_transposed(const at::Tensor& left, const at::Tensor& right, const at::Tensor& out);

/// Makes the columns orthonormal. One that those before it make up becomes a unit vector, orthogonalised in
/// its place. On a device each column is orthogonalised twice against all before it at once (classical
/// Gram-Schmidt with reorthogonalisation: Giraud, Langou, Rozloznik and van den Eshof, Numer. Math. 101,
/// 2005), in f64. Ranks with devices of one kind have the same bits. Cost there: some 30 kernels for each
/// column.
void orthogonalise(const at::Tensor& matrix);

}  // namespace trireme::parallel
