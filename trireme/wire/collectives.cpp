#include "trireme/wire/collectives.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "trireme/base/error.h"

namespace trireme::wire {
namespace {

constexpr double kPatienceWithVisitors_s = 0.1;

bool direct(Place place) { return place == Place::kSegment || place == Place::kPointer; }

bool reduces_somewhere(CallKind kind) {
  return kind == CallKind::kAllReduce || kind == CallKind::kReduceScatter || kind == CallKind::kReduce;
}

}  // namespace

Collectives::Collectives(std::shared_ptr<const ControlBlock> block, Waiter& waiter,
                         std::shared_ptr<SharedArena> arena)
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

/// Every rank checks all pairs, so that all ranks report the same error.
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
  waiter_.throw_if_over();
  waiter_.wait_all(Counter::kPosted, number, wait);
  compare(call, number);
  const CallShape shape = shape_of(call, rank_, size_);
  if (call.kind == CallKind::kBarrier) return;
  find_sources(number);
  const bool staged = any_source(Place::kStaged);
  const bool large_all_reduce = call.kind == CallKind::kAllReduce && !any_source(Place::kInline);
  // Ranks with mixed places use staging too: a tensor that is overwritten cannot be read in place by others.
  if (large_all_reduce)
    return staged ? reduce_in_two_halves(call, wait) : reduce_in_place(call, number, wait);
  if (any_source(Place::kSegment) || any_source(Place::kPointer))
    return take_from_tensors(call, shape, number, wait);
  attach_sources(call, number);
  if (staged)
    pull_staged(call, shape, number, wait);
  else
    take(call, shape, number, {0, ~std::uint64_t{0}}, 0, 0);
}

void Collectives::take_from_tensors(const Call& call, const CallShape& shape, std::uint64_t number,
                                    const Wait& wait) {
  {
    const Visit visit(*block_, rank_, number);
    waiter_.throw_if_aborted();
    attach_sources(call, number);
    if (any_source(Place::kStaged))
      pull_staged(call, shape, number, wait);
    else
      take(call, shape, number, {0, ~std::uint64_t{0}}, 0, 0);
  }
  // A rank that abandons an operation reuses its tensors: bytes read after that are invalid.
  waiter_.throw_if_aborted();
  waiter_.advance(Counter::kDone, number);
  const bool others_read_mine = direct(sources_[static_cast<std::size_t>(rank_)].descriptor->place);
  if (others_read_mine) waiter_.wait_all(Counter::kDone, number, wait);
}

// ---- abandoning an operation ----

void Collectives::retreat(const Call& call, std::uint64_t number) {
  const Descriptor& mine = block_->slot(rank_, number).descriptor;
  if (mine.number != number || !direct(mine.place)) return;
  const Membership& members = waiter_.membership();
  block_->abort(text(name(call.kind), " #", number, " of group ", members.group_name, ": rank ",
                     members.rank_name(rank_), " has left the group in the middle of it"));
  if (members.threads_of_one_process) {
    // No deadline needed: a thread of this process that works on it computes at most one block, then leaves.
    while (visited(number)) std::this_thread::yield();
    return;
  }
  // Other processes read through their own mapping, which stays valid. Only an all_reduce writes into tensors
  // of other ranks. A rank that writes leaves soon if it runs, and perhaps never if its process is stopped.
  if (call.kind != CallKind::kAllReduce) return;
  const Deadline deadline = Deadline::after_s(kPatienceWithVisitors_s);
  while (visited(number) && !deadline.expired()) std::this_thread::yield();
  if (!visited(number)) return;
  try {
    arena_->make_private(call.input, call.count * bytes_of(call.element));
  } catch (const CommError&) {
    // Without memory for a private copy there is no remedy. The first failure is the one to report.
  }
}

bool Collectives::visited(std::uint64_t number) const {
  for (int r = 0; r < size_; ++r)
    if (r != rank_ && block_->counter(r, Counter::kWorking).load() == number) return true;
  return false;
}

// ---- sources ----

void Collectives::find_sources(std::uint64_t number) {
  for (int s = 0; s < size_; ++s) {
    const Descriptor& descriptor = block_->slot(s, number).descriptor;
    sources_[static_cast<std::size_t>(s)] = {&descriptor, nullptr};
  }
}

/// Finds the addresses of inputs that are not staged. The owner of a segment must not finish the operation
/// before this: it could free the segment.
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
    const std::string end = waiter_.find_end_of(owner);
    waiter_.fail(text(name(descriptor.kind), " #", descriptor.number, " of group ", members.group_name, ": ",
                      end.empty() ? text("rank ", members.rank_name(rank_), ": ", error.what()) : end));
  }
}

bool Collectives::any_source(Place place) const {
  return std::any_of(sources_.begin(), sources_.end(),
                     [place](const Exposed& source) { return source.descriptor->place == place; });
}

}  // namespace trireme::wire
