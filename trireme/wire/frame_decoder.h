#pragma once
// Bytes of one direction of one connection become messages, or a fault with a name. Its input may be cut
// anywhere. It reserves memory for a message when the first frame's header has been checked, and never for
// more than the limits allow. After a fault it takes nothing more. Not thread-safe; a fuzzer calls it
// (tests/fuzz).

#include <map>
#include <memory>
#include <optional>
#include <span>

#include "trireme/wire/buffer_pool.h"
#include "trireme/wire/frame.h"

namespace trireme::wire {

class FrameDecoder {
 public:
  FrameDecoder(FrameLimits limits, std::shared_ptr<BufferPool> pool);
  ~FrameDecoder();
  FrameDecoder(const FrameDecoder&) = delete;
  FrameDecoder& operator=(const FrameDecoder&) = delete;

  /// Whether frames have hashes of their payloads. Before the first byte.
  void set_hashes(bool hashes) { hashes_ = hashes; }
  /// Where the next bytes go, so that they can be read straight to their place; empty while a header is due.
  std::span<std::byte> room();
  /// `count` bytes have been read into room(). The message that they complete, if they do.
  std::optional<Message> filled(std::size_t count);
  /// Takes bytes from the front of `bytes` until a message is whole, a fault is found, or none is left.
  std::optional<Message> take(std::span<const std::byte>& bytes);

  FrameFault fault() const { return fault_; }
  /// Of messages that have begun and are not whole.
  std::int64_t unfinished_bytes() const { return unfinished_bytes_; }
  /// Whether a frame has begun and is incomplete; and the payload length of the current or last frame.
  bool in_frame() const { return num_header_bytes_ > 0; }
  std::int64_t payload_bytes() const { return header_.payload_bytes; }
  std::uint64_t num_frames() const { return num_frames_; }

 private:
  struct Hash;
  /// A message that has begun; there is at most one of each priority.
  struct Assembly {
    std::uint64_t message = 0;
    std::uint16_t kind = 0;
    std::int64_t total_bytes = 0, received_bytes = 0;
    std::vector<std::byte> head = {};
    FreshBuffer body = {};
  };

  void begin_frame();
  FrameFault place(const FrameHeader& header);
  bool add_to_hash(std::span<const std::byte> bytes);
  std::optional<Message> end_frame();
  void fail(FrameFault fault);

  const FrameLimits limits_;
  bool hashes_ = true;
  const std::shared_ptr<BufferPool> pool_;
  FrameFault fault_ = FrameFault::kNone;
  FrameHeaderBytes header_bytes_;
  std::size_t num_header_bytes_ = 0;  ///< of header_bytes_; all of them while a payload is under way
  FrameHeader header_;
  std::int64_t payload_received_ = 0;
  std::unique_ptr<Hash> hash_;
  std::map<Priority, Assembly> assemblies_;
  Assembly* current_ = nullptr;                     ///< of the frame under way
  std::map<Priority, std::uint64_t> last_message_;  ///< that has begun
  std::int64_t unfinished_bytes_ = 0;
  std::uint64_t num_frames_ = 0;
};

}  // namespace trireme::wire
