#include "trireme/compress/low_rank.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "trireme/base/random.h"

namespace trireme::compress {
namespace {

std::vector<float> some_matrix(std::size_t rows, std::size_t columns, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> matrix(rows * columns);
  for (float& value : matrix) value = random.uniform() - 0.5F;
  return matrix;
}

void expect_orthonormal(const std::vector<float>& matrix, std::size_t rank) {
  for (std::size_t one = 0; one < rank; ++one) {
    for (std::size_t other = 0; other <= one; ++other) {
      double product = 0;
      for (std::size_t row = 0; row < matrix.size() / rank; ++row)
        product +=
            static_cast<double>(matrix[row * rank + one]) * static_cast<double>(matrix[row * rank + other]);
      EXPECT_NEAR(product, one == other ? 1 : 0, 1e-6) << one << ", " << other;
    }
  }
}

TEST(LowRank, OrthogonalColumnsKeepSpanWithUnitLength) {
  const std::vector<float> before = some_matrix(50, 4, 1);
  std::vector<float> matrix = before;
  orthogonalise(matrix, 4);
  expect_orthonormal(matrix, 4);
  // P P^T preserves any combination of the columns.
  std::vector<float> projector(50 * 50), weights(4 * 50);
  multiply_transposed(matrix, matrix, 4, projector);
  for (std::size_t row = 0; row < 50; ++row) {
    for (std::size_t column = 0; column < 4; ++column) {
      double sum = 0;
      for (std::size_t k = 0; k < 50; ++k)
        sum += static_cast<double>(projector[row * 50 + k]) * static_cast<double>(before[k * 4 + column]);
      EXPECT_NEAR(sum, before[row * 4 + column], 1e-5);
    }
  }
}

TEST(LowRank, DependentAndZeroColumnsBecomeNewDirections) {
  std::vector<float> zero(20 * 3);
  orthogonalise(zero, 3);
  expect_orthonormal(zero, 3);
  std::vector<float> same = some_matrix(20, 3, 2);
  for (std::size_t row = 0; row < 20; ++row) same[row * 3 + 2] = same[row * 3] - 3 * same[row * 3 + 1];
  orthogonalise(same, 3);
  expect_orthonormal(same, 3);
  std::vector<float> tiny = some_matrix(20, 2, 3);
  for (float& value : tiny) value *= 1e-30F;
  orthogonalise(tiny, 2);
  expect_orthonormal(tiny, 2);
}

TEST(LowRank, NaNStaysVisible) {
  std::vector<float> matrix = some_matrix(20, 2, 4);
  matrix[5] = std::numeric_limits<float>::quiet_NaN();
  orthogonalise(matrix, 2);
  EXPECT_TRUE(std::isnan(matrix[1]));
}

TEST(LowRank, ProductsFollowDefinitionForAnySizes) {
  for (const std::size_t rows : {1, 3, 33}) {
    for (const std::size_t columns : {1, 15, 16, 40}) {
      for (const std::size_t rank : {1, 2, 4, 7}) {
        const std::vector<float> matrix = some_matrix(rows, columns, rows),
                                 right = some_matrix(columns, rank, 5), left = some_matrix(rows, rank, 6);
        std::vector<float> product(rows * rank, 9), turned(columns * rank, 9);
        multiply(matrix, right, rank, product);
        multiply_turned(matrix, left, rank, turned);
        for (std::size_t k = 0; k < rank; ++k) {
          for (std::size_t row = 0; row < rows; ++row) {
            double sum = 0;
            for (std::size_t i = 0; i < columns; ++i)
              sum +=
                  static_cast<double>(matrix[row * columns + i]) * static_cast<double>(right[i * rank + k]);
            ASSERT_NEAR(product[row * rank + k], sum, 1e-5);
          }
          for (std::size_t column = 0; column < columns; ++column) {
            double sum = 0;
            for (std::size_t i = 0; i < rows; ++i)
              sum +=
                  static_cast<double>(matrix[i * columns + column]) * static_cast<double>(left[i * rank + k]);
            ASSERT_NEAR(turned[column * rank + k], sum, 1e-5);
          }
        }
      }
    }
  }
}

TEST(LowRank, ProductIsThatOfTheDefinition) {
  const std::vector<float> left = {1, 2, 3, 4, 5, 6}, right = {1, 0, 2, -1, 0, 1, 3, 3};  // 3 x 2, 4 x 2
  std::vector<float> out(12);
  multiply_transposed(left, right, 2, out);
  EXPECT_EQ(out, (std::vector<float>{1, 0, 2, 9, 3, 2, 4, 21, 5, 4, 6, 33}));
}

/// Convolutions and the linear layer of torchvision's ResNet-18 for CIFAR-10, as matrices of output channels
/// by the rest. Batch normalization and biases are sent uncompressed.
TEST(LowRank, ReachesPublishedCompressionRatiosOnResNet18) {
  struct Shape {
    std::size_t rows, columns, times;
  };
  const std::vector<Shape> matrices = {{64, 27, 1},    {64, 576, 4},   {128, 576, 1},  {128, 1152, 3},
                                       {128, 64, 1},   {256, 1152, 1}, {256, 2304, 3}, {256, 128, 1},
                                       {512, 2304, 1}, {512, 4608, 3}, {512, 256, 1},  {10, 512, 1}};
  constexpr std::size_t kVectors = 2 * (64 * 5 + 128 * 5 + 256 * 5 + 512 * 5) + 10;
  const auto total = [&](std::size_t rank) {
    std::size_t sum = kVectors;
    for (const Shape& each : matrices) {
      const std::size_t least = std::min(rank, std::min(each.rows, each.columns));
      const bool worth = is_worth_it(each.rows, each.columns, least);
      sum += each.times * (worth && rank > 0 ? least * (each.rows + each.columns) : each.rows * each.columns);
    }
    return static_cast<double>(sum);
  };
  EXPECT_EQ(total(0), 11'173'962);
  EXPECT_NEAR(total(0) / total(1), 243.3, 0.05);
  EXPECT_NEAR(total(0) / total(2), 135.8, 0.05);
  EXPECT_NEAR(total(0) / total(4), 72.1, 0.05);
}

}  // namespace
}  // namespace trireme::compress
