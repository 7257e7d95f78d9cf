#include "trireme/topology/internal/exchange_step.h"

#include <algorithm>
#include <array>
#include <map>

#include "trireme/base/error.h"
#include "trireme/wire/reduce.h"

namespace trireme::topology {
namespace {

constexpr std::size_t kAlignment = 64;
// Shorter pieces cost a kernel call each, and gain nothing.
constexpr std::size_t kMinPieceBytes = 64 << 10;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool overlap(std::span<const std::byte> one, std::span<const std::byte> other) {
  return one.data() < other.data() + other.size() && other.data() < one.data() + one.size();
}

}  // namespace

ExchangeStep::ExchangeStep(std::span<const Transfer> transfers, const StepData& on, Connections& connections,
                           std::vector<std::byte>& scratch)
    : on_(on), connections_(connections), scratch_(scratch) {
  for (const Transfer& each : transfers) {
    if (each.from != on.rank) continue;
    for (const auto& [line, piece] : pieces_of(each.to, each))
      sends_.push_back({.line = line, .left = held_of(piece)});
  }
  for (const Transfer& each : transfers) {
    if (each.to != on.rank) continue;
    // A step sends the values that were there at its start.
    const std::span<std::byte> target = target_of(each);
    const bool waits =
        std::ranges::any_of(sends_, [&](const Send& send) { return overlap(send.left, target); }) ||
        std::ranges::any_of(transfers, [&](const Transfer& other) {
          return &other != &each && other.to == on.rank && overlap(target_of(other), target);
        });
    if (waits && !each.adds) throw InternalError("a step replaces what it sends");
    for (const auto& [line, piece] : pieces_of(each.from, each)) {
      Receive receive{.line = line, .target = target_of(piece), .held = held_of(piece).data()};
      receive.adds_at_end = each.adds && waits;
      if (each.adds) receive.buffer = receive.target;  // its size; give_buffers() assigns the memory
      receives_.push_back(receive);
    }
  }
  give_buffers();
}

/// Both ends compute the same pieces, because they depend on the size only.
std::vector<std::pair<Line, Transfer>> ExchangeStep::pieces_of(int peer, const Transfer& transfer) const {
  const std::int64_t numel = transfer.end - transfer.begin;
  const std::size_t bytes = static_cast<std::size_t>(numel) * wire::bytes_of(on_.element);
  const auto lanes = static_cast<std::int64_t>(
      std::clamp<std::size_t>(bytes / kMinPieceBytes, 1, static_cast<std::size_t>(connections_.num_lanes())));
  std::vector<std::pair<Line, Transfer>> pieces;
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    Transfer piece = transfer;
    piece.begin = transfer.begin + numel * lane / lanes;
    piece.end = transfer.begin + numel * (lane + 1) / lanes;
    pieces.emplace_back(Line{peer, static_cast<std::size_t>(lane)}, piece);
  }
  return pieces;
}

std::span<const std::byte> ExchangeStep::held_of(const Transfer& transfer) const {
  const std::size_t size = wire::bytes_of(on_.element);
  return on_.held.subspan(static_cast<std::size_t>(transfer.begin) * size,
                          static_cast<std::size_t>(transfer.end - transfer.begin) * size);
}

std::span<std::byte> ExchangeStep::target_of(const Transfer& transfer) const {
  const std::size_t size = wire::bytes_of(on_.element);
  return on_.result.subspan(static_cast<std::size_t>(transfer.begin - on_.result_begin) * size,
                            static_cast<std::size_t>(transfer.end - transfer.begin) * size);
}

void ExchangeStep::give_buffers() {
  const auto needed = [](const Receive& receive) {
    return receive.adds_at_end ? receive.buffer.size() : std::min(receive.buffer.size(), kBlockBytes);
  };
  std::size_t total = kAlignment;
  for (const Receive& each : receives_) total += aligned(needed(each));
  if (scratch_.size() < total) scratch_ = std::vector<std::byte>(total);
  std::size_t at = kAlignment - reinterpret_cast<std::uintptr_t>(scratch_.data()) % kAlignment;
  for (Receive& each : receives_) {
    if (each.buffer.empty()) continue;
    each.buffer = std::span(scratch_).subspan(at, needed(each));
    at += aligned(each.buffer.size());
  }
}

bool ExchangeStep::push(Send& send) {
  const std::size_t bytes = connections_.send(send.line, send.left);
  send.left = send.left.subspan(bytes);
  return bytes > 0;
}

bool ExchangeStep::pull(Receive& receive) {
  std::span<std::byte> room = receive.target.subspan(receive.arrived);
  if (receive.adds_at_end) room = receive.buffer.subspan(receive.arrived);
  if (!receive.adds_at_end && !receive.buffer.empty()) {
    const std::size_t in_block = receive.arrived - receive.added;
    room = receive.buffer.subspan(in_block, std::min(receive.buffer.size() - in_block, room.size()));
  }
  const std::size_t bytes = connections_.receive(receive.line, room);
  receive.arrived += bytes;
  if (bytes == room.size() && !receive.buffer.empty() && !receive.adds_at_end) add_block(receive);
  return bytes > 0;
}

void ExchangeStep::add_block(Receive& receive) {
  const std::size_t bytes = receive.arrived - receive.added;
  std::byte* target = receive.target.data() + receive.added;
  std::array<const std::byte*, 2> sources{receive.held + receive.added, receive.buffer.data()};
  if (receive.line.peer < on_.rank) std::swap(sources[0], sources[1]);
  std::array<std::byte*, 1> targets{target};
  wire::reduce(on_.element, on_.reduction, sources, targets, bytes / wire::bytes_of(on_.element));
  receive.added += bytes;
}

/// Adds in rank order, with this rank's own values at its place.
void ExchangeStep::add_at_end() {
  std::map<std::byte*, std::vector<const Receive*>> by_target;
  for (const Receive& each : receives_) {
    if (each.adds_at_end) by_target[each.target.data()].push_back(&each);
  }
  for (auto& [target, all] : by_target) {
    const std::size_t bytes = all[0]->target.size();
    std::ranges::sort(all, {}, [](const Receive* each) { return each->line.peer; });
    std::vector<const std::byte*> sources;
    for (const Receive* each : all) {
      if (each->target.size() != bytes)
        throw InternalError("a step adds several parts that overlap and differ");
      sources.push_back(each->buffer.data());
    }
    const auto before =
        std::ranges::count_if(all, [&](const Receive* each) { return each->line.peer < on_.rank; });
    sources.insert(sources.begin() + before, all[0]->held);
    std::array<std::byte*, 1> targets{target};
    wire::reduce(on_.element, on_.reduction, sources, targets, bytes / wire::bytes_of(on_.element));
  }
}

/// Whether anything has moved.
bool ExchangeStep::move() {
  bool moved = false;
  for (Send& each : sends_) {
    if (!each.left.empty()) moved = push(each) || moved;
  }
  for (Receive& each : receives_) {
    if (!each.done() && !connections_.differs(each.line)) moved = pull(each) || moved;
  }
  return moved;
}

void ExchangeStep::wait(const Deadline& deadline) {
  std::vector<Line> receives, sends;
  for (const Receive& each : receives_) {
    if (connections_.differs(each.line)) connections_.stand_still(each.line.peer, deadline);
    if (!each.done()) receives.push_back(each.line);
  }
  for (const Send& each : sends_) {
    if (!each.left.empty()) sends.push_back(each.line);
  }
  connections_.wait(receives, sends, deadline);
}

void ExchangeStep::carry_out(const Deadline& deadline) {
  const auto is_over = [&] {
    return std::ranges::all_of(sends_, [](const Send& each) { return each.left.empty(); }) &&
           std::ranges::all_of(receives_, [&](const Receive& each) {
             return each.done() && !connections_.differs(each.line);
           });
  };
  while (!is_over()) {
    if (!move() && !is_over()) wait(deadline);
  }
  add_at_end();
}

}  // namespace trireme::topology
