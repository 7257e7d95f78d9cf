#include "trireme/parallel/tensor/dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/model/forward_record.h"
#include "trireme/model/parameter_box.h"

namespace trireme::parallel {
namespace {

constexpr std::uint64_t kDropoutKey = Random::key_of("dropout");

}  // namespace

ParallelDropout::ParallelDropout(std::shared_ptr<DropoutKeys> keys, double probability)
    : keys_(std::move(keys)), number_(keys_->dropouts_++), probability_(probability) {
  require(probability >= 0 && probability < 1, "a dropout of probability ", probability,
          "; expected at least 0 and below 1");
}

/// 0 for dropped elements, 1 / (1 - probability) for the others, in f32.
at::Tensor ParallelDropout::factors(at::IntArrayRef sizes, std::int64_t dim, const Range& range,
                                    std::int64_t size) const {
  require(keys_->pass_.has_value(),
          "a dropout is used before DropoutKeys::begin(): it has to know which pass it draws for");
  model::ParameterBox box{.name = {}, .global_sizes = sizes.vec(), .offsets = {}, .sizes = sizes.vec()};
  box.offsets.resize(sizes.size(), 0);
  if (!sizes.empty()) {
    box.global_sizes[static_cast<std::size_t>(dim)] = size;
    box.offsets[static_cast<std::size_t>(dim)] = range.begin;
  }
  at::Tensor factors = at::empty(sizes, at::kFloat);
  float* values = factors.data_ptr<float>();
  const auto limit = static_cast<float>(probability_), kept = static_cast<float>(1 / (1 - probability_));
  const Random whole(keys_->seed_, kDropoutKey, model::same_again(*keys_->pass_), number_);
  model::for_each_run(box, [&](std::int64_t in_whole, std::int64_t in_part, std::int64_t count) {
    Random random = whole;
    random.skip(static_cast<std::uint64_t>(in_whole));
    for (std::int64_t i = in_part; i < in_part + count; ++i) values[i] = random.uniform() < limit ? 0 : kept;
  });
  return factors;
}

at::Tensor ParallelDropout::forward(const at::Tensor& input) {
  const std::int64_t size = input.dim() > 0 ? input.size(0) : 1;
  return forward(input, 0, {.begin = 0, .size = size}, size);
}

at::Tensor ParallelDropout::forward(const at::Tensor& part, std::int64_t dim, const Range& range,
                                    std::int64_t size) {
  if (!is_training() || probability_ == 0) return part;
  require(part.dim() == 0 || (dim >= 0 && dim < part.dim() && part.size(dim) == range.size),
          "a dropout is given a tensor of shape ", part.sizes(), "; expected ", range.size, " along dim ",
          dim);
  return part * factors(part.sizes(), dim, range, size).to(part.options());
}

at::Tensor ParallelDropout::forward(const at::Tensor& part, const Sequence& sequence,
                                    const comm::Group& group) {
  return forward(part, sequence.dim, part_of_rank(sequence.length, group.rank(), group.size()),
                 sequence.length);
}

at::Tensor ParallelDropout::forward(const at::Tensor& own, std::int64_t dim,
                                    const ContextSequence& sequence) {
  if (!is_training() || probability_ == 0) return own;
  std::vector<at::Tensor> dropped;
  std::int64_t begin = 0;
  for (const Range& piece : sequence.pieces_of(sequence.group.rank())) {
    dropped.push_back(forward(own.narrow(dim, begin, piece.size), dim, piece, sequence.length));
    begin += piece.size;
  }
  return at::cat(dropped, dim);
}

}  // namespace trireme::parallel
