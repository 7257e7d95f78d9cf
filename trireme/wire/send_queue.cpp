#include "trireme/wire/internal/send_queue.h"

#include <algorithm>
#include <limits>

namespace trireme::wire {

void SendQueue::push(Message message) {
  Lane& lane = lanes_[message.priority];
  if (lane.messages.empty()) lane.passed_over_since = cut_bytes_;
  waiting_bytes_ += kFrameHeaderBytes + message.num_bytes();
  Waiting waiting{.number = ++last_number_,
                  .head_bytes = static_cast<std::int64_t>(message.head.size()),
                  .total_bytes = static_cast<std::int64_t>(message.num_bytes())};
  waiting.message = std::move(message);
  lane.messages.push_back(std::move(waiting));
}

std::span<const iovec> SendQueue::next(std::size_t most_bytes, std::size_t max_parts) {
  const auto bytes_at_hand = [&] { return frames_bytes_ - gone_of_first_; };
  while (bytes_at_hand() < most_bytes && 3 * (frames_.size() + 1) <= max_parts && cut()) {
  }
  parts_.clear();
  std::size_t skip = gone_of_first_;
  const auto add = [&](std::span<const std::byte> bytes) {
    const std::size_t skipped = std::min(skip, bytes.size());
    skip -= skipped;
    if (skipped == bytes.size()) return;
    // writev(2) only reads from these.
    parts_.push_back({const_cast<std::byte*>(bytes.data()) + skipped, bytes.size() - skipped});
  };
  for (const Frame& frame : frames_) {
    add(frame.header);
    add(frame.head);
    add(frame.body.bytes());
  }
  return parts_;
}

void SendQueue::gone(std::size_t bytes) {
  waiting_bytes_ -= bytes;
  gone_of_first_ += bytes;
  while (!frames_.empty() && gone_of_first_ >= frames_.front().size()) {
    gone_of_first_ -= frames_.front().size();
    frames_bytes_ -= frames_.front().size();
    frames_.pop_front();
  }
}

std::map<Priority, SendQueue::Lane>::iterator SendQueue::choose() {
  auto best = lanes_.end();
  std::int64_t best_rank = std::numeric_limits<std::int64_t>::max();
  for (auto lane = lanes_.begin(); lane != lanes_.end(); ++lane) {
    const Waiting& first = lane->second.messages.front();
    const bool fits = first.sent_bytes > 0 || unfinished_bytes_ == 0 ||
                      first.total_bytes <= options_.max_unfinished_bytes - unfinished_bytes_;
    if (!fits) continue;
    // Both terms are in bytes. On a tie, the lower priority number is next.
    const std::int64_t rank =
        lane->first * options_.age_bytes - (cut_bytes_ - lane->second.passed_over_since);
    if (rank < best_rank) {
      best = lane;
      best_rank = rank;
    }
  }
  return best;
}

bool SendQueue::cut() {
  const auto lane = choose();
  if (lane == lanes_.end()) return false;
  Waiting& waiting = lane->second.messages.front();
  Message& message = waiting.message;
  const std::int64_t total = waiting.total_bytes, head_bytes = waiting.head_bytes;
  const std::int64_t offset = waiting.sent_bytes;
  const std::int64_t payload =
      std::min(total - offset, std::max(options_.chunk_bytes, offset == 0 ? head_bytes : 1));
  if (offset == 0) unfinished_bytes_ += total;

  Frame frame;
  const std::int64_t of_head = offset == 0 ? head_bytes : 0;
  if (of_head > 0) frame.head = std::move(message.head);
  frame.body = message.body.part(static_cast<std::size_t>(offset + of_head - head_bytes),
                                 static_cast<std::size_t>(payload - of_head));
  frame.header = encode({.kind = message.kind,
                         .priority = message.priority,
                         .head_bytes = static_cast<std::uint32_t>(head_bytes),
                         .message = waiting.number,
                         .offset = offset,
                         .total_bytes = total,
                         .payload_bytes = payload,
                         .payload_hash = hashes_ ? payload_hash(frame.head, frame.body.bytes()) : 0});
  frames_bytes_ += frame.size();
  frames_.push_back(std::move(frame));
  ++num_frames_;
  // Each message counted one header when it was added. Further frames add their own.
  if (offset > 0) waiting_bytes_ += kFrameHeaderBytes;
  waiting.sent_bytes += payload;
  cut_bytes_ += payload + static_cast<std::int64_t>(kFrameHeaderBytes);
  lane->second.passed_over_since = cut_bytes_;
  if (waiting.sent_bytes < total) return true;
  unfinished_bytes_ -= total;
  lane->second.messages.pop_front();
  if (lane->second.messages.empty()) lanes_.erase(lane);
  return true;
}

}  // namespace trireme::wire
