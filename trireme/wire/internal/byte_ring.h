#pragma once
// Bytes from one process to another through memory that both map: a ring with one writer and one reader. The
// other end is not trusted: each end keeps its own place private, checks the other's before it uses it, and
// copies bytes before they are parsed. An idle end sets a word before it sleeps and checks once more. The
// other, which sets its place first and reads the word then, has to wake it. All four of these accesses are
// sequentially consistent, so that at least one of the two sees the other (Dekker; byte_ring_test.cpp tries
// every order). One thread per end.

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace trireme::wire {

/// In shared memory. Zeroes: an empty ring.
struct RingControl {
  alignas(64) std::atomic<std::uint64_t> written;  ///< bytes in all; the writer's
  std::atomic<std::uint32_t> reader_sleeps;        ///< set by the reader, taken by the writer
  alignas(64) std::atomic<std::uint64_t> read;     ///< bytes in all; the reader's
  std::atomic<std::uint32_t> writer_sleeps;        ///< set by the writer, taken by the reader
};
static_assert(sizeof(RingControl) == 128 && std::atomic<std::uint64_t>::is_always_lock_free);

/// A ring's place in memory; the size of `bytes` is a power of two.
struct RingPlace {
  RingControl* control;
  std::span<std::byte> bytes;
};

class RingWriter {
 public:
  explicit RingWriter(RingPlace place) : ring_(place) {}
  /// Copies as much as there is room for, at most `most` bytes; how much that was.
  std::size_t write(std::span<const iovec> parts, std::size_t most);
  /// Whether the reader has to be woken, because of the last writes. Returns true once.
  bool take_wake();
  /// Asks to be woken when there is room; true when there is some already.
  bool arm();
  /// The reader has set its place to where it cannot be.
  bool broken() const { return broken_; }

 private:
  std::size_t room();
  const RingPlace ring_;
  std::uint64_t written_ = 0, seen_read_ = 0;
  bool broken_ = false;
};

class RingReader {
 public:
  explicit RingReader(RingPlace place) : ring_(place) {}
  std::size_t read(std::span<const iovec> parts);
  /// Whether the writer has to be woken: it waits for room, and half of the ring is free.
  bool take_wake();
  /// Asks to be woken when there is something; true when there is already.
  bool arm();
  bool has_bytes() { return available() > 0; }
  bool broken() const { return broken_; }

 private:
  std::size_t available();
  const RingPlace ring_;
  std::uint64_t read_ = 0, seen_written_ = 0;
  bool broken_ = false;
};

}  // namespace trireme::wire
