#pragma once
// Waiting messages of one connection, and their order. Messages are cut into frames. The next frame is of the
// message with the least priority number, first come first served. A priority that was passed over while
// `age_bytes` were sent counts as one less. So priority p gets a frame at the latest after (p + 1) *
// age_bytes of others. Not thread-safe.

#include <sys/uio.h>

#include <deque>
#include <map>
#include <span>
#include <vector>

#include "trireme/wire/frame.h"

namespace trireme::wire {

struct SendQueueOptions {
  std::int64_t chunk_bytes = 1 << 20;
  std::int64_t age_bytes = 4 << 20;
  std::int64_t max_unfinished_bytes = FrameLimits{}.max_unfinished_bytes;  ///< that the receiver takes
};

class SendQueue {
 public:
  explicit SendQueue(SendQueueOptions options) : options_(options) {}

  /// Whether frames have hashes of their payloads. Before the first frame.
  void set_hashes(bool hashes) { hashes_ = hashes; }
  void set_max_unfinished_bytes(std::int64_t bytes) { options_.max_unfinished_bytes = bytes; }
  void push(Message message);
  bool empty() const { return waiting_bytes_ == 0; }
  /// With the headers of messages whose end has not gone.
  std::size_t waiting_bytes() const { return waiting_bytes_; }
  std::uint64_t num_frames() const { return num_frames_; }

  /// The next bytes to write: about `most_bytes`, in at most `max_parts` parts. Valid until gone().
  std::span<const iovec> next(std::size_t most_bytes, std::size_t max_parts);
  /// The first `bytes` of next() have been written.
  void gone(std::size_t bytes);

 private:
  struct Waiting {
    Message message = {};  ///< its head goes with the first frame
    std::uint64_t number = 0;
    std::int64_t head_bytes = 0, total_bytes = 0;
    std::int64_t sent_bytes = 0;  ///< or in frames_
  };
  struct Lane {
    std::deque<Waiting> messages;
    std::int64_t passed_over_since = 0;  ///< cut_bytes_ when it last had a turn, or began to wait
  };
  /// A frame in transfer. The parts are in `message`, which it keeps alive.
  struct Frame {
    FrameHeaderBytes header;
    std::vector<std::byte> head;
    Buffer body;
    std::size_t size() const { return kFrameHeaderBytes + head.size() + body.size(); }
  };
  /// False when nothing may be cut.
  bool cut();
  std::map<Priority, Lane>::iterator choose();

  SendQueueOptions options_;
  bool hashes_ = true;
  std::map<Priority, Lane> lanes_;
  std::deque<Frame> frames_;
  std::size_t frames_bytes_ = 0;
  std::size_t gone_of_first_ = 0;
  std::vector<iovec> parts_;
  std::size_t waiting_bytes_ = 0;
  std::int64_t cut_bytes_ = 0;
  std::int64_t unfinished_bytes_ = 0;  ///< of messages that have begun and are not all cut
  std::uint64_t last_number_ = 0;
  std::uint64_t num_frames_ = 0;
};

}  // namespace trireme::wire
