#include "trireme/wire/collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/wire/reduce.h"

namespace trireme::wire {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kBlockBytes = 64 << 10;  ///< of an in-place all_reduce: stays in the second cache

constexpr std::uint64_t divide_up(std::uint64_t value, std::uint64_t by) { return (value + by - 1) / by; }
constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t step) {
  return divide_up(value, step) * step;
}

std::uint64_t elements_per_line(const Call& call) { return kLine / bytes_of(call.element); }

bool direct(Place place) { return place == Place::kSegment || place == Place::kPointer; }

bool reduces_somewhere(CallKind kind) {
  return kind == CallKind::kAllReduce || kind == CallKind::kReduceScatter || kind == CallKind::kReduce;
}

/// Elements of one rank's share of an in-place all_reduce: whole cache lines.
std::uint64_t share_elements(const Call& call, int size) {
  return round_up(divide_up(call.count, static_cast<std::uint64_t>(size)), elements_per_line(call));
}

std::uint64_t block_elements(const Call& call) { return kBlockBytes / bytes_of(call.element); }

std::uint64_t num_blocks(const Call& call, int size, int owner) {
  const std::uint64_t share = share_elements(call, size);
  const std::uint64_t begin = std::min(share * static_cast<std::uint64_t>(owner), call.count);
  return divide_up(std::min(begin + share, call.count) - begin, block_elements(call));
}

}  // namespace

Collectives::Collectives(std::shared_ptr<const ControlBlock> block, Waiter& waiter,
                         std::shared_ptr<const SharedArena> arena)
    : block_(std::move(block)),
      waiter_(waiter),
      arena_(std::move(arena)),
      peer_memory_(block_),
      rank_(waiter.membership().rank),
      size_(waiter.membership().size),
      sources_(static_cast<std::size_t>(size_)) {}

std::size_t Collectives::input_bytes(const Call& call, const CallShape& shape) {
  if (!shape.exposes) return 0;
  const std::uint64_t elements =
      call.input_offsets.empty() ? call.count * shape.num_parts : call.input_offsets.back();
  return elements * bytes_of(call.element);
}

// ---- posting ----

void Collectives::post(const Call& call, std::uint64_t number) {
  const CallShape shape = shape_of(call, rank_, size_);
  Slot& slot = block_->slot(rank_, number);
  Descriptor& descriptor = slot.descriptor;
  descriptor = Descriptor{.number = number,
                          .count = call.count,
                          .largest_part = call.count,
                          .root = call.root,
                          .kind = call.kind,
                          .element = call.element,
                          .reduction = call.reduction,
                          .place = Place::kNowhere,
                          .segment = 0,
                          .generation = 0,
                          .offset = 0,
                          .unequal_parts = !call.input_offsets.empty(),
                          .unequal_takes = !call.output_offsets.empty()};
  if (descriptor.unequal_takes)
    std::copy(call.output_offsets.begin(), call.output_offsets.end(), block_->output_offsets(rank_, number));
  if (descriptor.unequal_parts) {
    std::copy(call.input_offsets.begin(), call.input_offsets.end(), block_->input_offsets(rank_, number));
    descriptor.largest_part = 0;
    for (std::size_t p = 0; p + 1 < call.input_offsets.size(); ++p)
      descriptor.largest_part =
          std::max(descriptor.largest_part, call.input_offsets[p + 1] - call.input_offsets[p]);
  }
  if (shape.exposes) {
    descriptor.place = choose_place(call, input_bytes(call, shape), descriptor);
    if (descriptor.place == Place::kInline) copy_input(call, shape, block_->slot_data(rank_, number));
  }
  slot.claimed.store(0, std::memory_order_relaxed);
  slot.finished.store(0, std::memory_order_relaxed);
  waiter_.advance(Counter::kPosted, number);
}

Place Collectives::choose_place(const Call& call, std::size_t bytes, Descriptor& descriptor) const {
  if (bytes <= block_->layout().inline_bytes) return Place::kInline;
  if (!call.input_parts.empty()) return Place::kStaged;
  if (waiter_.membership().threads_of_one_process) {
    descriptor.offset = reinterpret_cast<std::uintptr_t>(call.input);
    return Place::kPointer;
  }
  const auto location = arena_ ? arena_->locate(call.input, bytes) : std::nullopt;
  if (!location) return Place::kStaged;
  descriptor.segment = location->segment;
  descriptor.generation = location->generation;
  descriptor.offset = location->offset;
  return Place::kSegment;
}

void Collectives::copy_input(const Call& call, const CallShape& shape, std::byte* to) const {
  const std::size_t bytes = input_bytes(call, shape);
  if (bytes == 0) return;
  if (call.input_parts.empty()) {
    std::memcpy(to, call.input, bytes);
    return;
  }
  const std::size_t part_bytes = call.count * bytes_of(call.element);
  for (std::size_t p = 0; p < shape.num_parts; ++p)
    std::memcpy(to + p * part_bytes, call.input_parts[p], part_bytes);
}

// ---- agreement ----

std::string Collectives::describe(const Descriptor& descriptor, bool with_reduction) const {
  std::string result = name(descriptor.kind);
  if (descriptor.kind != CallKind::kBarrier) {
    const std::string count = descriptor.unequal_parts ? "unequal parts" : text(descriptor.count);
    result += text(" of ", count, " ", name(descriptor.element));
  }
  if (descriptor.root >= 0) result += text(" with root ", waiter_.membership().rank_name(descriptor.root));
  if (with_reduction) result += text(" (", name(descriptor.reduction), ")");
  return result;
}

void Collectives::compare(const Call& call, std::uint64_t number) const {
  const Membership& members = waiter_.membership();
  const Descriptor& first = block_->slot(0, number).descriptor;
  for (int r = 1; r < size_; ++r) {
    const Descriptor& other = block_->slot(r, number).descriptor;
    const bool sizes_matter = first.kind != CallKind::kAllToAll;
    const bool other_reduction = reduces_somewhere(first.kind) && first.reduction != other.reduction;
    if (first.kind == other.kind && first.element == other.element && first.root == other.root &&
        (!sizes_matter || first.count == other.count) && !other_reduction)
      continue;
    const bool show_reduction = other_reduction && first.kind == other.kind;
    waiter_.fail(text(name(first.kind), " #", number, " of group ", members.group_name, ": rank ",
                      members.rank_name(0), " issues ", describe(first, show_reduction), ", rank ",
                      members.rank_name(r), " issues ", describe(other, show_reduction)));
  }
  if (call.kind == CallKind::kAllToAll) compare_parts(number);
}

/// All ranks look at all pairs, so that all fail alike.
void Collectives::compare_parts(std::uint64_t number) const {
  const Membership& members = waiter_.membership();
  for (int from = 0; from < size_; ++from) {
    for (int to = 0; to < size_; ++to) {
      const Range part = part_of(from, static_cast<std::size_t>(to), number);
      const Descriptor& taker = block_->slot(to, number).descriptor;
      const std::uint64_t* offsets = block_->output_offsets(to, number);
      const std::uint64_t expected = taker.unequal_takes ? offsets[from + 1] - offsets[from] : taker.count;
      if (part.end - part.begin == expected) continue;
      waiter_.fail(text("all_to_all #", number, " of group ", members.group_name, ": rank ",
                        members.rank_name(from), " sends ", part.end - part.begin, " ", name(taker.element),
                        " to rank ", members.rank_name(to), ", which expects ", expected));
    }
  }
}

// ---- running ----

void Collectives::run(const Call& call, std::uint64_t number, const Wait& wait) {
  waiter_.throw_if_aborted();
  waiter_.wait_all(Counter::kPosted, number, wait);
  compare(call, number);
  const CallShape shape = shape_of(call, rank_, size_);
  if (call.kind == CallKind::kBarrier) return;
  find_sources(number);
  const bool staged = any_source(Place::kStaged);
  const bool large_all_reduce = call.kind == CallKind::kAllReduce && !any_source(Place::kInline);
  // Mixed ones too go through staging: what is overwritten cannot be read by others where it lies.
  if (large_all_reduce)
    return staged ? reduce_in_two_halves(call, wait) : reduce_in_place(call, number, wait);
  attach_sources(call, number);
  if (staged)
    pull_staged(call, shape, number, wait);
  else
    take(call, shape, number, {0, ~std::uint64_t{0}}, 0, 0);
  if (!any_source(Place::kSegment) && !any_source(Place::kPointer)) return;
  waiter_.advance(Counter::kDone, number);
  const bool others_read_mine = direct(sources_[static_cast<std::size_t>(rank_)].descriptor->place);
  if (others_read_mine) waiter_.wait_all(Counter::kDone, number, wait);
}

void Collectives::find_sources(std::uint64_t number) {
  for (int s = 0; s < size_; ++s) {
    const Descriptor& descriptor = block_->slot(s, number).descriptor;
    sources_[static_cast<std::size_t>(s)] = {&descriptor, nullptr};
  }
}

/// Finds where the inputs lie that need no staging. The owners of segments must not be able to finish the
/// operation before: they may free the segment then.
void Collectives::attach_sources(const Call& call, std::uint64_t number) {
  for (int s = 0; s < size_; ++s) {
    Exposed& source = sources_[static_cast<std::size_t>(s)];
    const Descriptor& descriptor = *source.descriptor;
    if (descriptor.place == Place::kInline) source.base = block_->slot_data(s, number);
    if (descriptor.place == Place::kPointer)
      source.base = reinterpret_cast<const std::byte*>(descriptor.offset);
    if (descriptor.place == Place::kSegment)
      source.base = s == rank_ ? call.input : attach_segment(s, descriptor);
  }
}

const std::byte* Collectives::attach_segment(int owner, const Descriptor& descriptor) {
  try {
    return peer_memory_.segment(owner, descriptor.segment, descriptor.generation) + descriptor.offset;
  } catch (const CommError& error) {
    const Membership& members = waiter_.membership();
    waiter_.fail(text(name(descriptor.kind), " #", descriptor.number, " of group ", members.group_name,
                      ": rank ", members.rank_name(rank_), ": ", error.what()));
  }
}

bool Collectives::any_source(Place place) const {
  return std::any_of(sources_.begin(), sources_.end(),
                     [place](const Exposed& source) { return source.descriptor->place == place; });
}

// ---- in place ----

void Collectives::reduce_in_place(const Call& call, std::uint64_t number, const Wait& wait) {
  std::atomic<std::uint64_t>& working = block_->counter(rank_, Counter::kWorking);
  working.store(number);
  bool attached = false;
  for (int i = 0; i < size_; ++i) {
    const int owner = (rank_ + i) % size_;
    Slot& slot = block_->slot(owner, number);
    const std::uint64_t blocks = num_blocks(call, size_, owner);
    while (slot.claimed.load(std::memory_order_relaxed) < blocks) {
      const std::uint64_t block = slot.claimed.fetch_add(1);
      if (block >= blocks) break;
      // Only now, as nobody can finish without this block.
      if (!std::exchange(attached, true)) attach_sources(call, number);
      reduce_block(call, owner, block);
      if (slot.finished.fetch_add(1) + 1 == blocks && all_blocks_finished(call, number)) waiter_.ring_all();
    }
  }
  working.store(0);
  waiter_.wait_until(
      wait, [&] { return all_blocks_finished(call, number); },
      [&](int r) { return block_->counter(r, Counter::kWorking).load() == number; });
}

void Collectives::reduce_block(const Call& call, int owner, std::uint64_t block) {
  const std::uint64_t share = share_elements(call, size_);
  const std::uint64_t share_begin = share * static_cast<std::uint64_t>(owner);
  const std::uint64_t begin = share_begin + block * block_elements(call);
  const std::uint64_t end = std::min({begin + block_elements(call), share_begin + share, call.count});
  inputs_.clear();
  outputs_.clear();
  for (const Exposed& source : sources_) {
    const std::byte* at = source.base + begin * bytes_of(call.element);
    inputs_.push_back(at);
    outputs_.push_back(const_cast<std::byte*>(at));
  }
  reduce(call.element, call.reduction, inputs_, outputs_, end - begin);
}

bool Collectives::all_blocks_finished(const Call& call, std::uint64_t number) const {
  for (int owner = 0; owner < size_; ++owner)
    if (block_->slot(owner, number).finished.load() < num_blocks(call, size_, owner)) return false;
  return true;
}

// ---- in two halves ----

Collectives::StagedPiece Collectives::staged_piece(const Call& call, std::uint64_t piece) const {
  const std::uint64_t per_piece = block_->layout().piece_bytes / bytes_of(call.element);
  const std::uint64_t begin = piece * per_piece;
  const std::uint64_t length = std::min(per_piece, call.count - begin);
  const std::uint64_t share =
      round_up(divide_up(length, static_cast<std::uint64_t>(size_)), elements_per_line(call));
  const std::uint64_t share_begin = std::min(share * static_cast<std::uint64_t>(rank_), length);
  return {begin, length, {share_begin, std::min(share_begin + share, length)}};
}

/// Copies all of a piece but this rank's share, which nobody else reads.
void Collectives::copy_but_share(const Call& call, const StagedPiece& piece, std::byte* to,
                                 const std::byte* from) const {
  const std::size_t element_bytes = bytes_of(call.element);
  std::memcpy(to, from, piece.share.begin * element_bytes);
  std::memcpy(to + piece.share.end * element_bytes, from + piece.share.end * element_bytes,
              (piece.length - piece.share.end) * element_bytes);
}

void Collectives::reduce_share(const Call& call, const StagedPiece& piece, std::uint64_t index) {
  const std::size_t element_bytes = bytes_of(call.element);
  const std::size_t offset = piece.share.begin * element_bytes;
  inputs_.clear();
  for (int s = 0; s < size_; ++s)
    inputs_.push_back(s == rank_ ? call.input + piece.begin * element_bytes + offset
                                 : block_->piece(s, index) + offset);
  std::byte* targets[] = {block_->piece(0, index) + offset,
                          call.output + piece.begin * element_bytes + offset};
  if (piece.share.end > piece.share.begin)
    reduce(call.element, call.reduction, inputs_, targets, piece.share.end - piece.share.begin);
}

void Collectives::reduce_in_two_halves(const Call& call, const Wait& wait) {
  const std::size_t element_bytes = bytes_of(call.element);
  const std::uint64_t pieces = divide_up(call.count, block_->layout().piece_bytes / element_bytes);
  const std::uint64_t before = pieces_used_;
  const auto fill = [&](std::uint64_t k) {
    const std::uint64_t index = before + k;
    if (index >= kPieces) waiter_.wait_all(Counter::kTaken, index - kPieces + 1, wait);
    const StagedPiece piece = staged_piece(call, k);
    copy_but_share(call, piece, block_->piece(rank_, index), call.input + piece.begin * element_bytes);
    waiter_.advance(Counter::kFilled, index + 1);
  };
  fill(0);
  for (std::uint64_t k = 0; k <= pieces; ++k) {
    if (k + 1 < pieces) fill(k + 1);
    if (k < pieces) {
      waiter_.wait_all(Counter::kFilled, before + k + 1, wait);
      reduce_share(call, staged_piece(call, k), before + k);
      waiter_.advance(Counter::kReduced, before + k + 1);
    }
    if (k == 0) continue;
    waiter_.wait_all(Counter::kReduced, before + k, wait);
    const StagedPiece piece = staged_piece(call, k - 1);
    copy_but_share(call, piece, call.output + piece.begin * element_bytes, block_->piece(0, before + k - 1));
    waiter_.advance(Counter::kTaken, before + k);
  }
  pieces_used_ += pieces;
}

// ---- pull ----

void Collectives::pull_staged(const Call& call, const CallShape& shape, std::uint64_t number,
                              const Wait& wait) {
  const std::size_t element_bytes = bytes_of(call.element);
  std::uint64_t largest = 0;
  for (const Exposed& source : sources_)
    if (source.descriptor->place != Place::kNowhere)
      largest = std::max(largest, source.descriptor->largest_part);
  const std::uint64_t per_part =
      block_->layout().piece_bytes / shape.num_parts / kLine * kLine / element_bytes;
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
