#include "trireme/wire/internal/byte_ring.h"

#include <algorithm>
#include <cstring>

namespace trireme::wire {
namespace {

/// Copies `count` bytes between consecutive parts and a ring, from `place` on.
template <class Copy>
void copy_parts(std::span<const iovec> parts, std::span<std::byte> ring, std::uint64_t place,
                std::size_t count, const Copy& copy) {
  for (const iovec& part : parts) {
    auto* at = static_cast<std::byte*>(part.iov_base);
    for (std::size_t left = std::min(part.iov_len, count); left > 0;) {
      const std::size_t offset = place & (ring.size() - 1);
      const std::size_t run = std::min(left, ring.size() - offset);
      copy(at, ring.data() + offset, run);
      at += run;
      place += run;
      left -= run;
      count -= run;
    }
  }
}

}  // namespace

std::size_t RingWriter::room() {
  const std::uint64_t read = ring_.control->read.load(std::memory_order_seq_cst);
  if (read < seen_read_ || read > written_) broken_ = true;
  if (broken_) return 0;
  seen_read_ = read;
  return ring_.bytes.size() - static_cast<std::size_t>(written_ - read);
}

std::size_t RingWriter::write(std::span<const iovec> parts, std::size_t most) {
  std::size_t wanted = 0;
  for (const iovec& part : parts) wanted += part.iov_len;
  const std::size_t count = std::min({wanted, most, room()});
  if (count == 0) return 0;
  copy_parts(parts, ring_.bytes, written_, count,
             [](std::byte* mine, std::byte* shared, std::size_t run) { std::memcpy(shared, mine, run); });
  written_ += count;
  ring_.control->written.store(written_, std::memory_order_seq_cst);
  return count;
}

bool RingWriter::take_wake() {
  auto& sleeps = ring_.control->reader_sleeps;
  return sleeps.load(std::memory_order_seq_cst) != 0 && sleeps.exchange(0) != 0;
}

bool RingWriter::arm() {
  ring_.control->writer_sleeps.store(1, std::memory_order_seq_cst);
  // Half of the ring, as the reader computes it: a lower threshold would wake the writer for every few bytes.
  if (room() < ring_.bytes.size() / 2 && !broken_) return false;
  ring_.control->writer_sleeps.store(0, std::memory_order_seq_cst);
  return true;
}

std::size_t RingReader::available() {
  const std::uint64_t written = ring_.control->written.load(std::memory_order_seq_cst);
  if (written < seen_written_ || written - read_ > ring_.bytes.size()) broken_ = true;
  if (broken_) return 0;
  seen_written_ = written;
  return static_cast<std::size_t>(written - read_);
}

std::size_t RingReader::read(std::span<const iovec> parts) {
  std::size_t wanted = 0;
  for (const iovec& part : parts) wanted += part.iov_len;
  const std::size_t count = std::min(wanted, available());
  if (count == 0) return 0;
  copy_parts(parts, ring_.bytes, read_, count,
             [](std::byte* mine, std::byte* shared, std::size_t run) { std::memcpy(mine, shared, run); });
  read_ += count;
  ring_.control->read.store(read_, std::memory_order_seq_cst);
  return count;
}

bool RingReader::take_wake() {
  auto& sleeps = ring_.control->writer_sleeps;
  if (sleeps.load(std::memory_order_seq_cst) == 0 || available() > ring_.bytes.size() / 2) return false;
  return sleeps.exchange(0) != 0;
}

bool RingReader::arm() {
  ring_.control->reader_sleeps.store(1, std::memory_order_seq_cst);
  if (available() == 0 && !broken_) return false;
  ring_.control->reader_sleeps.store(0, std::memory_order_seq_cst);
  return true;
}

}  // namespace trireme::wire
