#pragma once
// Two-sided messages: a ring of bytes in the control block for each ordered pair of ranks. A message is a
// header and its bytes, streamed through the ring. So a message may be larger than the ring, and small ones
// have left the sender at once. Messages of a pair arrive in the order sent. Nothing here waits; one thread
// at a time.

#include <cstdint>
#include <memory>

#include "trireme/wire/control_block.h"
#include "trireme/wire/waiter.h"

namespace trireme::wire {

/// One message to or from a peer.
struct Transfer {
  enum class Direction : std::uint8_t { kSend, kReceive } direction = Direction::kSend;
  int peer = 0;
  Element element = Element::kF32;
  std::uint64_t count = 0;
  int tag = 0;
  std::byte* data = nullptr;  ///< only read when sending
};

/// "send of 12 f32 to rank 1"
std::string describe(const Transfer& message, const Membership& members);

class Mailboxes {
 public:
  Mailboxes(std::shared_ptr<const ControlBlock> block, Waiter& waiter);

  /// How much of a message has gone through the ring so far; one for each message, from its begin.
  struct Progress {
    bool header_done = false;
    std::uint64_t bytes_done = 0;
  };
  /// Moves as many bytes as there is room or data for; true when the message is complete. A receive that
  /// finds a message of another type, size or tag aborts the group and throws CommError.
  bool advance(const Transfer& message, Progress& progress, std::uint64_t number);

 private:
  struct Header {
    std::uint64_t count;
    std::int32_t tag;
    Element element;
  };
  bool advance_send(const Transfer& message, Progress& progress);
  bool advance_receive(const Transfer& message, Progress& progress, std::uint64_t number);
  void compare(const Transfer& message, const Header& header, std::uint64_t number) const;

  std::shared_ptr<const ControlBlock> block_;
  Waiter& waiter_;
  const int rank_;
};

}  // namespace trireme::wire
