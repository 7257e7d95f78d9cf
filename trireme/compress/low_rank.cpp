#include "trireme/compress/low_rank.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "trireme/base/kernels.h"

namespace trireme::compress {
namespace {

/// Fraction of a column's length that can be rounding error when the column depends on the others.
constexpr double kRounding = 1e-6;

class Columns {
 public:
  Columns(std::span<float> matrix, std::size_t rank)
      : matrix_(matrix), rank_(rank), rows_(matrix.size() / rank) {}

  double length(std::size_t column) const { return std::sqrt(product(column, column)); }
  void scale(std::size_t column, double by) {
    for (std::size_t row = 0; row < rows_; ++row)
      at(row, column) = static_cast<float>(by * static_cast<double>(at(row, column)));
  }
  /// Subtracts the projections on the columns before it, which have length 1.
  void take_out_others(std::size_t column) {
    for (std::size_t other = 0; other < column; ++other) {
      const double along = product(other, column);
      for (std::size_t row = 0; row < rows_; ++row)
        at(row, column) = static_cast<float>(static_cast<double>(at(row, column)) -
                                             along * static_cast<double>(at(row, other)));
    }
  }
  void make_unit(std::size_t column, std::size_t along) {
    for (std::size_t row = 0; row < rows_; ++row) at(row, column) = row == along ? 1 : 0;
  }
  std::size_t rows() const { return rows_; }

 private:
  float& at(std::size_t row, std::size_t column) { return matrix_[row * rank_ + column]; }
  float at(std::size_t row, std::size_t column) const { return matrix_[row * rank_ + column]; }
  double product(std::size_t one, std::size_t other) const {
    double sum = 0;
    for (std::size_t row = 0; row < rows_; ++row)
      sum += static_cast<double>(at(row, one)) * static_cast<double>(at(row, other));
    return sum;
  }

  const std::span<float> matrix_;
  const std::size_t rank_, rows_;
};

/// True: the column was independent of the ones before it, and has length 1 now.
bool make_orthonormal(Columns& columns, std::size_t column) {
  for (int times = 0; times < 2; ++times) {
    const double before = columns.length(column);
    columns.take_out_others(column);
    const double left = columns.length(column);
    if (!(left > kRounding * before)) return std::isnan(left);  // NaN must stay visible
    columns.scale(column, 1 / left);
  }
  return true;
}

/// The transpose: one row for each column.
std::vector<float> turned(std::span<const float> matrix, std::size_t columns) {
  const std::size_t rows = matrix.size() / columns;
  std::vector<float> result(matrix.size());
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; ++column)
      result[column * rows + row] = matrix[row * columns + column];
  }
  return result;
}

constexpr std::size_t kAtOnce = 4, kLanes = 16;

/// Dot products of a row with `count` consecutive others. The matrix is read once for several of them.
template <std::size_t count>
TRIREME_INLINE void products(const float* row, const float* others, std::size_t length, float* out) {
  float sums[count][kLanes] = {};
  const std::size_t whole = length / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t k = 0; k < count; ++k) {
      for (std::size_t lane = 0; lane < kLanes; ++lane)
        sums[k][lane] += row[i + lane] * others[k * length + i + lane];
    }
  }
  for (std::size_t k = 0; k < count; ++k) {
    for (std::size_t i = whole; i < length; ++i) sums[k][i - whole] += row[i] * others[k * length + i];
    float sum = 0;
    for (std::size_t lane = 0; lane < kLanes; ++lane) sum += sums[k][lane];
    out[k] = sum;
  }
}

/// Adds multiples of a row to `count` others.
template <std::size_t count>
TRIREME_INLINE void add_multiples(const float* row, const float* factors, std::size_t length, float* others) {
  TRIREME_NO_CARRIED_DEPENDENCE
  for (std::size_t i = 0; i < length; ++i) {
    for (std::size_t k = 0; k < count; ++k) others[k * length + i] += factors[k] * row[i];
  }
}

}  // namespace

void multiply(std::span<const float> matrix, std::span<const float> right, std::size_t rank,
              std::span<float> out) {
  const std::size_t columns = right.size() / rank, rows = matrix.size() / columns;
  const std::vector<float> others = turned(right, rank);
  run_vectorised([&]() TRIREME_INLINE_BODY {
    for (std::size_t row = 0; row < rows; ++row) {
      const float* from = matrix.data() + row * columns;
      float* to = out.data() + row * rank;
      std::size_t k = 0;
      for (; k + kAtOnce <= rank; k += kAtOnce)
        products<kAtOnce>(from, others.data() + k * columns, columns, to + k);
      for (; k < rank; ++k) products<1>(from, others.data() + k * columns, columns, to + k);
    }
  });
}

void multiply_turned(std::span<const float> matrix, std::span<const float> left, std::size_t rank,
                     std::span<float> out) {
  const std::size_t rows = left.size() / rank, columns = matrix.size() / rows;
  std::vector<float> sums(out.size());
  run_vectorised([&]() TRIREME_INLINE_BODY {
    for (std::size_t row = 0; row < rows; ++row) {
      const float* from = matrix.data() + row * columns;
      const float* factors = left.data() + row * rank;
      std::size_t k = 0;
      for (; k + kAtOnce <= rank; k += kAtOnce)
        add_multiples<kAtOnce>(from, factors + k, columns, sums.data() + k * columns);
      for (; k < rank; ++k) add_multiples<1>(from, factors + k, columns, sums.data() + k * columns);
    }
  });
  const std::vector<float> as_columns = turned(sums, columns);
  std::copy(as_columns.begin(), as_columns.end(), out.begin());
}

void orthogonalise(std::span<float> matrix, std::size_t rank) {
  Columns columns(matrix, rank);
  for (std::size_t column = 0; column < rank; ++column) {
    if (make_orthonormal(columns, column)) continue;
    for (std::size_t along = 0; along < columns.rows(); ++along) {
      columns.make_unit(column, along);
      if (make_orthonormal(columns, column)) break;
    }
  }
}

void multiply_transposed(std::span<const float> left, std::span<const float> right, std::size_t rank,
                         std::span<float> out) {
  const std::size_t rows = left.size() / rank, columns = right.size() / rank;
  const std::vector<float> others = turned(right, rank);
  run_vectorised([&]() TRIREME_INLINE_BODY {
    for (std::size_t row = 0; row < rows; ++row) {
      float* to = out.data() + row * columns;
      for (std::size_t k = 0; k < rank; ++k) {
        const float factor = left[row * rank + k];
        const float* from = others.data() + k * columns;
        TRIREME_NO_CARRIED_DEPENDENCE
        for (std::size_t column = 0; column < columns; ++column)
          to[column] = k == 0 ? factor * from[column] : to[column] + factor * from[column];
      }
    }
  });
}

}  // namespace trireme::compress
