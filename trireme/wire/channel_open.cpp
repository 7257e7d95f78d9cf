// An open channel: frames in both directions.

#include <sys/epoll.h>

#include <algorithm>
#include <array>

#include "trireme/base/error.h"
#include "trireme/wire/internal/channel.h"

namespace trireme::wire {
namespace {

// Bytes that one channel reads or writes before the other channels of its loop run.
constexpr std::size_t kShareBytes = 2 << 20;
constexpr std::size_t kWriteBytes = 256 << 10;
constexpr std::size_t kWriteParts = 96;
// Frames of at least this size are read directly to their destination. Smaller ones are read many at once.
constexpr std::int64_t kLargeFrameBytes = 64 << 10;

}  // namespace

void Channel::open() {
  state_ = State::kOpen;
  was_open_ = true;
  const bool is_hashed = target_.kind == TransportKind::kTcp && tls_ == nullptr;
  queue_.set_hashes(is_hashed);
  decoder_.set_hashes(is_hashed);
  if (memory_) {
    stream_ = std::make_unique<RingStream>(plain_->release(), std::move(memory_), accepted_);
    plain_ = nullptr;
  }
  queue_.set_max_unfinished_bytes(
      std::min(settings_.limits.max_unfinished_bytes, peer_limits().max_unfinished_bytes));
  sent_at_s_ = received_at_s_ = now_s();
  owner_.channel_opened(*this);
}

void Channel::receive() {
  const std::uint64_t before = num_bytes_in_;
  while (is_open() && !paused_ && num_bytes_in_ - before < kShareBytes && read_once()) {
  }
}

bool Channel::more_input() {
  return is_open() && !paused_ && (left_over_at_ < left_over_.size() || stream_->has_input());
}

bool Channel::read_once() {
  if (left_over_at_ < left_over_.size()) {
    left_over_at_ += hand_over(std::span(left_over_).subspan(left_over_at_));
    if (left_over_at_ == left_over_.size()) left_over_ = {};
    if (left_over_.empty()) left_over_at_ = 0;
    return is_open();
  }
  const std::span<std::byte> room = decoder_.room();
  const std::size_t num_staged = large_frames_ ? kFrameHeaderBytes : settings_.stage.size();
  std::array<iovec, 2> parts = {iovec{room.data(), room.size()}, iovec{settings_.stage.data(), num_staged}};
  const bool to_its_place = room.size() >= static_cast<std::size_t>(kLargeFrameBytes);
  const Moved moved = to_its_place   ? stream_->read(std::span(parts).first(1))
                      : room.empty() ? stream_->read(std::span(parts).last(1))
                                     : stream_->read(parts);
  if (moved.flow == Flow::kNotNow) return false;
  if (moved.flow != Flow::kMoved) {
    fail_stream(moved.flow);
    return false;
  }
  received_at_s_ = now_s();
  num_bytes_in_ += moved.bytes;
  const std::size_t in_place = std::min(moved.bytes, room.size());
  auto message = decoder_.filled(in_place);
  large_frames_ = decoder_.payload_bytes() >= kLargeFrameBytes;
  if (message) owner_.channel_message(*this, std::move(*message));
  check_decoder();
  if (!is_open()) return false;
  // All channels share the staging buffer, so bytes that pause() leaves in it are copied.
  const auto staged = std::span(settings_.stage).first(moved.bytes - in_place);
  const auto rest = staged.subspan(hand_over(staged));
  if (is_open()) left_over_.assign(rest.begin(), rest.end());
  return is_open();
}

void Channel::fail_stream(Flow flow) {
  if (flow == Flow::kBroken) return fail(CloseCause::kBadFrame, "shared memory", stream_->failure());
  fail(CloseCause::kByPeer, "", flow == Flow::kEnded ? "it has closed the connection" : stream_->failure());
}

std::size_t Channel::hand_over(std::span<const std::byte> bytes) {
  const std::size_t all = bytes.size();
  while (is_open() && !paused_ && !bytes.empty() && decoder_.fault() == FrameFault::kNone) {
    auto message = decoder_.take(bytes);
    large_frames_ = decoder_.payload_bytes() >= kLargeFrameBytes;
    if (message) owner_.channel_message(*this, std::move(*message));
  }
  check_decoder();
  return all - bytes.size();
}

void Channel::check_decoder() {
  if (!is_open() || decoder_.fault() == FrameFault::kNone) return;
  const std::string what = name_of(decoder_.fault());
  fail(CloseCause::kBadFrame, what, text("what it sends is no frame of this protocol: ", what));
}

void Channel::send(Message message) {
  if (state_ == State::kClosed) return;
  const FrameLimits limits = is_open() ? peer_limits() : settings_.limits;
  const std::int64_t most = std::min(settings_.limits.max_message_bytes, limits.max_message_bytes);
  if (message.head.size() > Message::kMaxHeadBytes) {
    throw InvalidArgument(text(
        "the head of a message to ", peer_text(), " has ", human_bytes(message.head.size()), "; at most ",
        human_bytes(Message::kMaxHeadBytes), " are possible: the rest belongs into its body"));
  }
  if (std::cmp_greater(message.num_bytes(), most)) {
    throw InvalidArgument(text("a message to ", peer_text(), " has ", human_bytes(message.num_bytes()),
                               "; at most ", human_bytes(static_cast<std::uint64_t>(most)),
                               " are possible: send several, or raise max_message_bytes of both ends"));
  }
  if (!has_output()) sent_at_s_ = now_s();
  queue_.push(std::move(message));
}

void Channel::flush() {
  if (!is_open() || blocked_) return;
  std::size_t num_written = 0;
  if (stream_->has_output()) {
    const Flow flow = stream_->flush();
    blocked_ = flow == Flow::kNotNow;
    if (flow == Flow::kFailed) return fail_stream(flow);
  }
  while (!blocked_ && !queue_.empty() && num_written < kShareBytes) {
    const Moved moved = stream_->write(queue_.next(kWriteBytes, kWriteParts));
    if (moved.flow == Flow::kNotNow) {
      blocked_ = true;
    } else if (moved.flow == Flow::kMoved) {
      queue_.gone(moved.bytes);
      num_written += moved.bytes;
    } else {
      return fail_stream(moved.flow);
    }
  }
  num_bytes_out_ += num_written;
  if (num_written > 0) sent_at_s_ = now_s();
}

}  // namespace trireme::wire
