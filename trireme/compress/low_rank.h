#pragma once
// The steps of PowerSGD (Vogels, Karimireddy and Jaggi, NeurIPS 2019, algorithm 1): products of a matrix with
// few columns, at the speed of reading the matrix, and the steps that every rank runs locally with equal
// results. All of it gives the same bits on every machine. Matrices are row by row. Functions without state;
// any thread.

#include <cstddef>
#include <span>

namespace trireme::compress {

/// Makes the columns of a matrix of `rank` columns orthonormal, one after the other (modified Gram-Schmidt,
/// twice). One that the others before it already make up, or that is zero, becomes a unit vector
/// orthogonalised in its place: it has a direction again in the next step. Cost: 4 rank^2 per row.
void orthogonalise(std::span<float> matrix, std::size_t rank);

/// out = matrix right, of `rank` columns each.
void multiply(std::span<const float> matrix, std::span<const float> right, std::size_t rank,
              std::span<float> out);

/// out = matrix^T left, of `rank` columns each.
void multiply_turned(std::span<const float> matrix, std::span<const float> left, std::size_t rank,
                     std::span<float> out);

/// out = left right^T, of `rank` columns each: out has left's rows and, as columns, right's rows.
void multiply_transposed(std::span<const float> left, std::span<const float> right, std::size_t rank,
                         std::span<float> out);

/// Whether a matrix is smaller as two factors of that rank.
constexpr bool is_worth_it(std::size_t rows, std::size_t columns, std::size_t rank) {
  return rank * (rows + columns) < rows * columns;
}

}  // namespace trireme::compress
