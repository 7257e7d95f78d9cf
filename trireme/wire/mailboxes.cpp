#include "trireme/wire/mailboxes.h"

#include <algorithm>
#include <cstring>

#include "trireme/base/text.h"

namespace trireme::wire {
namespace {

/// Copies into a ring. `position` counts all bytes ever written.
void put(std::byte* ring, std::size_t capacity, std::uint64_t position, const void* from, std::size_t bytes) {
  const std::size_t at = position % capacity;
  const std::size_t first = std::min(bytes, capacity - at);
  std::memcpy(ring + at, from, first);
  if (first < bytes) std::memcpy(ring, static_cast<const std::byte*>(from) + first, bytes - first);
}

void get(const std::byte* ring, std::size_t capacity, std::uint64_t position, void* to, std::size_t bytes) {
  const std::size_t at = position % capacity;
  const std::size_t first = std::min(bytes, capacity - at);
  std::memcpy(to, ring + at, first);
  if (first < bytes) std::memcpy(static_cast<std::byte*>(to) + first, ring, bytes - first);
}

}  // namespace

std::string describe(const Transfer& message, const Membership& members) {
  const bool sends = message.direction == Transfer::Direction::kSend;
  return text(sends ? "send of " : "recv of ", message.count, " ", name(message.element),
              sends ? " to rank " : " from rank ", members.rank_name(message.peer));
}

Mailboxes::Mailboxes(std::shared_ptr<const ControlBlock> block, Waiter& waiter)
    : block_(std::move(block)), waiter_(waiter), rank_(waiter.membership().rank) {}

bool Mailboxes::advance(const Transfer& message, Progress& progress, std::uint64_t number) {
  return message.direction == Transfer::Direction::kSend ? advance_send(message, progress)
                                                         : advance_receive(message, progress, number);
}

bool Mailboxes::advance_send(const Transfer& message, Progress& progress) {
  Mailbox& box = block_->mailbox(rank_, message.peer);
  std::byte* ring = block_->mailbox_data(rank_, message.peer);
  const std::size_t capacity = block_->layout().mailbox_bytes;
  std::uint64_t written = box.written.load(std::memory_order_relaxed);
  const std::uint64_t start = written;
  std::size_t room = capacity - (written - box.read.load());
  if (!progress.header_done) {
    if (room < sizeof(Header)) return false;
    Header header{};
    header.count = message.count;
    header.tag = message.tag;
    header.element = message.element;
    put(ring, capacity, written, &header, sizeof header);
    written += sizeof header;
    room -= sizeof header;
    progress.header_done = true;
  }
  const std::uint64_t total = message.count * bytes_of(message.element);
  const std::size_t now = std::min<std::uint64_t>(room, total - progress.bytes_done);
  if (now > 0) put(ring, capacity, written, message.data + progress.bytes_done, now);
  progress.bytes_done += now;
  if (written + now != start) {
    box.written.store(written + now);
    block_->ring(message.peer);
  }
  return progress.bytes_done == total;
}

bool Mailboxes::advance_receive(const Transfer& message, Progress& progress, std::uint64_t number) {
  Mailbox& box = block_->mailbox(message.peer, rank_);
  const std::byte* ring = block_->mailbox_data(message.peer, rank_);
  const std::size_t capacity = block_->layout().mailbox_bytes;
  std::uint64_t read = box.read.load(std::memory_order_relaxed);
  const std::uint64_t start = read;
  std::size_t there = box.written.load() - read;
  if (!progress.header_done) {
    if (there < sizeof(Header)) return false;
    Header header{};
    get(ring, capacity, read, &header, sizeof header);
    compare(message, header, number);
    read += sizeof header;
    there -= sizeof header;
    progress.header_done = true;
  }
  const std::uint64_t total = message.count * bytes_of(message.element);
  const std::size_t now = std::min<std::uint64_t>(there, total - progress.bytes_done);
  if (now > 0) get(ring, capacity, read, message.data + progress.bytes_done, now);
  progress.bytes_done += now;
  if (read + now != start) {
    box.read.store(read + now);
    block_->ring(message.peer);
  }
  return progress.bytes_done == total;
}

void Mailboxes::compare(const Transfer& message, const Header& header, std::uint64_t number) const {
  if (header.count == message.count && header.element == message.element && header.tag == message.tag) return;
  const Membership& members = waiter_.membership();
  const bool tags = header.tag != message.tag;
  waiter_.fail(text("recv #", number, " of group ", members.group_name, ": rank ",
                    members.rank_name(message.peer), " sends ", header.count, " ", name(header.element),
                    tags ? text(" with tag ", header.tag) : "", ", rank ", members.rank_name(rank_),
                    " receives ", message.count, " ", name(message.element),
                    tags ? text(" with tag ", message.tag) : ""));
}

}  // namespace trireme::wire
