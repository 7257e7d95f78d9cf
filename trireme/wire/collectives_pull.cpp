// Each rank copies the parts that it needs from where other ranks expose them, whole or piece by piece.

#include <algorithm>
#include <cstring>

#include "trireme/base/rounding.h"
#include "trireme/wire/collectives.h"
#include "trireme/wire/reduce.h"

namespace trireme::wire {
void Collectives::pull_staged(const Call& call, const CallShape& shape, std::uint64_t number,
                              const Wait& wait) {
  const std::size_t element_bytes = bytes_of(call.element);
  std::uint64_t largest = 0;
  for (const Exposed& source : sources_)
    if (source.descriptor->place != Place::kNowhere)
      largest = std::max(largest, source.descriptor->largest_part);
  const std::uint64_t per_part =
      block_->layout().piece_bytes / shape.num_parts / kCacheLineBytes * kCacheLineBytes / element_bytes;
  const std::uint64_t pieces = divide_up(largest, per_part);
  const std::uint64_t before = pieces_used_;
  fill_piece(call, shape, 0, per_part, wait);
  for (std::uint64_t k = 0; k < pieces; ++k) {
    if (k + 1 < pieces) fill_piece(call, shape, k + 1, per_part, wait);
    waiter_.wait_all(Counter::kFilled, before + k + 1, wait);
    if (shape.takes) take(call, shape, number, {k * per_part, (k + 1) * per_part}, before + k, per_part);
    waiter_.advance(Counter::kTaken, before + k + 1);
  }
  pieces_used_ += pieces;
}

void Collectives::fill_piece(const Call& call, const CallShape& shape, std::uint64_t piece,
                             std::uint64_t elements, const Wait& wait) {
  const std::uint64_t index = pieces_used_ + piece;
  const bool mine_is_staged = shape.exposes && sources_[static_cast<std::size_t>(rank_)].base == nullptr;
  if (mine_is_staged) {
    if (index >= kPieces) waiter_.wait_all(Counter::kTaken, index - kPieces + 1, wait);
    const std::size_t element_bytes = bytes_of(call.element);
    std::byte* to = block_->piece(rank_, index);
    for (std::size_t p = 0; p < shape.num_parts; ++p) {
      const bool unequal = !call.input_offsets.empty();
      const std::uint64_t start = unequal ? call.input_offsets[p] : p * call.count;
      const std::uint64_t length = unequal ? call.input_offsets[p + 1] - start : call.count;
      const std::uint64_t begin = std::min(piece * elements, length);
      const std::uint64_t end = std::min(begin + elements, length);
      const std::byte* from =
          call.input_parts.empty() ? call.input + start * element_bytes : call.input_parts[p];
      if (end > begin)
        std::memcpy(to + p * elements * element_bytes, from + begin * element_bytes,
                    (end - begin) * element_bytes);
    }
  }
  waiter_.advance(Counter::kFilled, index + 1);
}

Collectives::Range Collectives::part_of(int source, std::size_t part, std::uint64_t number) const {
  const Descriptor& descriptor = block_->slot(source, number).descriptor;
  if (!descriptor.unequal_parts) return {part * descriptor.count, (part + 1) * descriptor.count};
  const std::uint64_t* offsets = block_->input_offsets(source, number);
  return {offsets[part], offsets[part + 1]};
}

const std::byte* Collectives::source_at(const Call& call, int source, std::size_t part, std::uint64_t number,
                                        Range range, std::uint64_t piece,
                                        std::uint64_t piece_elements) const {
  const std::size_t element_bytes = bytes_of(call.element);
  const std::byte* base = sources_[static_cast<std::size_t>(source)].base;
  if (base == nullptr) return block_->piece(source, piece) + part * piece_elements * element_bytes;
  return base + (part_of(source, part, number).begin + range.begin) * element_bytes;
}

void Collectives::take(const Call& call, const CallShape& shape, std::uint64_t number, Range range,
                       std::uint64_t piece, std::uint64_t piece_elements) {
  if (!shape.takes) return;
  const std::size_t element_bytes = bytes_of(call.element);
  inputs_.clear();
  for (int s = 0; s < size_; ++s) {
    if (shape.only_source >= 0 && s != shape.only_source) continue;
    const std::size_t at = shape.only_source >= 0 ? 0 : static_cast<std::size_t>(s);
    const Range part = part_of(s, shape.part_taken, number);
    const std::uint64_t length = part.end - part.begin;
    const Range here{std::min(range.begin, length), std::min(range.end, length)};
    if (here.end == here.begin) continue;
    const std::byte* from = source_at(call, s, shape.part_taken, number, here, piece, piece_elements);
    if (shape.reduces) {
      inputs_.push_back(from);
      if (inputs_.size() < static_cast<std::size_t>(size_)) continue;
      std::byte* to = call.output + here.begin * element_bytes;
      reduce(call.element, call.reduction, inputs_, {&to, 1}, here.end - here.begin);
      continue;
    }
    const std::uint64_t start = call.output_offsets.empty() ? at * call.count : call.output_offsets[at];
    std::byte* to = call.output_parts.empty() ? call.output + start * element_bytes : call.output_parts[at];
    to += here.begin * element_bytes;
    if (to != from) std::memcpy(to, from, (here.end - here.begin) * element_bytes);
  }
}

}  // namespace trireme::wire
