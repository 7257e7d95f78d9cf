#pragma once
// Two rings in memory next to the Unix socket over which their ends have connected. The socket carries the
// bell, one byte for a wake-up, and shows the end of the other process. The listening end makes the memory
// and passes it over the socket; it is sealed, so that neither end can truncate it (memfd_create(2),
// fcntl(2)).

#include <memory>

#include "trireme/wire/internal/byte_ring.h"
#include "trireme/wire/internal/stream.h"
#include "trireme/wire/socket.h"

namespace trireme::wire {

/// Memory for both rings of a channel.
class RingMemory {
 public:
  /// Throws CommError where there is none.
  static std::unique_ptr<RingMemory> create(std::size_t bytes_each_way);
  /// The memory that the peer has passed, whose descriptor it takes over; null where that was not made by
  /// create().
  static std::unique_ptr<RingMemory> receive(int descriptor);
  ~RingMemory();
  RingMemory(const RingMemory&) = delete;
  RingMemory& operator=(const RingMemory&) = delete;

  int descriptor() const { return descriptor_.fd(); }
  RingPlace from_connector() const { return place(0); }
  RingPlace from_listener() const { return place(1); }
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  RingMemory(Socket descriptor, std::byte* data, std::size_t bytes)
      : descriptor_(std::move(descriptor)), data_(data), bytes_(bytes) {}
  static std::unique_ptr<RingMemory> map(Socket descriptor, std::size_t bytes);
  RingPlace place(std::size_t which) const;

  Socket descriptor_;
  std::byte* data_;
  std::size_t bytes_;
};

/// Sends the memory's descriptor with one byte of `bytes`, which is not empty.
bool pass_descriptor(int fd, int descriptor, std::string& bytes);
/// Reads as read(2) does, and a descriptor if one came; -1 else.
struct PassedBytes {
  Moved moved;
  int descriptor = -1;
};
PassedBytes read_with_descriptor(int fd, std::span<const iovec> parts);

class RingStream final : public Stream {
 public:
  RingStream(Socket socket, std::unique_ptr<RingMemory> memory, bool listening);

  int fd() const override { return socket_.fd(); }
  Moved read(std::span<const iovec> parts) override;
  Moved write(std::span<const iovec> parts) override;
  bool has_output() const override { return false; }
  Flow flush() override { return Flow::kMoved; }
  bool has_input() override { return ended_ || reader_.has_bytes() || reader_.broken(); }
  bool arm() override { return reader_.arm() || ended_; }
  void notice() override;
  bool tells_room_by_input() const override { return true; }
  bool watched_while_paused() const override { return !ended_; }
  std::string failure() const override;

 private:
  void ring();

  Socket socket_;
  std::unique_ptr<RingMemory> memory_;
  RingWriter writer_;
  RingReader reader_;
  bool ended_ = false;  ///< the other process has closed the socket
};

}  // namespace trireme::wire
