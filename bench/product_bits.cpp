// Question: on what do the bits of a matrix product depend, on this processor? Products of several shapes,
// types and orders of the operands. Compared are operands at 36 pairs of alignments on one thread, results at
// 6 alignments on 2 threads, and 2 threads with 1. Prints one line of JSON for each shape and type: the
// number of cases with different bits.
//
//   bench_product_bits [--smoke]

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>

#include <CLI/CLI.hpp>
#include <array>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

namespace {

constexpr std::array kOffsets = {0, 1, 3, 4, 8, 12};  // in elements, beyond a multiple of 64 bytes

struct Shape {
  std::int64_t rows = 0, inner = 0, columns = 0;
};

/// A copy of `tensor`, at `offset` elements in a storage.
at::Tensor placed_at(const at::Tensor& tensor, int offset) {
  at::Tensor storage = at::empty({tensor.numel() + 64}, tensor.options());
  at::Tensor placed = storage.narrow(0, offset, tensor.numel()).view(tensor.sizes());
  placed.copy_(tensor);
  return placed;
}

at::Tensor transposed_at(const at::Tensor& tensor, int offset) {
  return placed_at(tensor.t().contiguous(), offset).t();
}

nlohmann::json compared(const Shape& shape, at::ScalarType type) {
  const at::Tensor a = at::randn({shape.rows, shape.inner}, type),
                   b = at::randn({shape.inner, shape.columns}, type);
  using Placing = at::Tensor (*)(const at::Tensor&, int);
  const std::array<std::pair<Placing, Placing>, 3> orders = {
      {{placed_at, placed_at}, {transposed_at, placed_at}, {placed_at, transposed_at}}};
  int by_alignment = 0, by_threads = 0, by_result = 0;
  for (const auto& order : orders) {
    const auto product = [&](int i, int j) { return at::mm(order.first(a, i), order.second(b, j)); };
    at::set_num_threads(1);
    const at::Tensor expected = product(0, 0);
    for (const int i : kOffsets)
      for (const int j : kOffsets) by_alignment += !product(i, j).equal(expected);
    at::set_num_threads(2);
    const at::Tensor on_two_threads = product(0, 0);
    by_threads += !on_two_threads.equal(expected);
    for (const int i : kOffsets) {
      at::Tensor result = placed_at(expected, i);
      at::mm_out(result, order.first(a, 0), order.second(b, 0));
      by_result += !result.equal(on_two_threads);
    }
  }
  return {{"shape", {shape.rows, shape.inner, shape.columns}},
          {"type", c10::toString(type)},
          {"differ_by_alignment", by_alignment},
          {"alignments", orders.size() * kOffsets.size() * kOffsets.size()},
          {"differ_by_alignment_of_result_on_2_threads", by_result},
          {"alignments_of_result", orders.size() * kOffsets.size()},
          {"differ_by_threads", by_threads},
          {"orders", orders.size()}};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("On what the bits of a matrix product depend.");
  bool smoke = false;
  app.add_flag("--smoke", smoke, "two shapes only");
  CLI11_PARSE(app, argc, argv);
  std::vector<Shape> shapes = {{255, 784, 8}, {8, 255, 784}};
  if (!smoke)
    shapes.insert(shapes.end(), {{64, 10, 8},
                                 {64, 512, 512},
                                 {128, 128, 384},
                                 {1000, 64, 64},
                                 {33, 65, 127},
                                 {512, 2048, 512},
                                 {7, 9, 11},
                                 {4096, 27, 64},
                                 {1, 4096, 1000},
                                 {1, 1024, 1024}});
  for (const Shape& shape : shapes)
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16})
      std::cout << compared(shape, type) << std::endl;
}
