#include "trireme/wire/internal/ring_stream.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/wire/internal/socket_stream.h"

namespace trireme::wire {
namespace {

constexpr std::size_t kControlBytes = 4096;
constexpr std::size_t kMinRingBytes = 4096, kMaxRingBytes = std::size_t{256} << 20;
constexpr int kRingSeals = F_SEAL_SHRINK | F_SEAL_GROW;
// Published in steps, so that the reader starts on a long message while the rest is written.
constexpr std::size_t kPublishBytes = 128 << 10;

union Control {
  char bytes[CMSG_SPACE(sizeof(int))];
  cmsghdr aligned;
};

}  // namespace

std::unique_ptr<RingMemory> RingMemory::create(std::size_t bytes_each_way) {
  const std::size_t bytes = kControlBytes + 2 * bytes_each_way;
  Socket descriptor(::memfd_create("trireme-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const bool made = descriptor.fd() >= 0 &&
                    ::fallocate(descriptor.fd(), 0, 0, static_cast<off_t>(bytes)) == 0 &&
                    ::fcntl(descriptor.fd(), F_ADD_SEALS, kRingSeals | F_SEAL_SEAL) == 0;
  auto result = made ? map(std::move(descriptor), bytes) : nullptr;
  if (!result) throw CommError(text("no shared memory for a channel: ", std::strerror(errno)));
  return result;
}

std::unique_ptr<RingMemory> RingMemory::receive(int passed) {
  Socket descriptor(passed);
  struct stat found {};
  const int seals = ::fcntl(passed, F_GET_SEALS);
  if (seals < 0 || (seals & kRingSeals) != kRingSeals || ::fstat(passed, &found) != 0) return nullptr;
  const auto bytes = static_cast<std::size_t>(found.st_size);
  const std::size_t each_way = bytes < kControlBytes ? 0 : (bytes - kControlBytes) / 2;
  const bool fits = each_way >= kMinRingBytes && each_way <= kMaxRingBytes && std::has_single_bit(each_way) &&
                    bytes == kControlBytes + 2 * each_way;
  return fits ? map(std::move(descriptor), bytes) : nullptr;
}

std::unique_ptr<RingMemory> RingMemory::map(Socket descriptor, std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.fd(), 0);
  if (memory == MAP_FAILED) return nullptr;
  return std::unique_ptr<RingMemory>(
      new RingMemory(std::move(descriptor), static_cast<std::byte*>(memory), bytes));
}

RingMemory::~RingMemory() { ::munmap(data_, bytes_); }

RingPlace RingMemory::place(std::size_t which) const {
  const std::size_t each_way = (bytes_ - kControlBytes) / 2;
  // The kernel's zeroed pages are a valid initial RingControl.
  return {.control = reinterpret_cast<RingControl*>(data_) + which,
          .bytes = {data_ + kControlBytes + which * each_way, each_way}};
}

bool pass_descriptor(int fd, int descriptor, std::string& bytes) {
  iovec part{bytes.data(), 1};
  Control control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  if (::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) != 1) return false;
  bytes.erase(0, 1);
  return true;
}

PassedBytes read_with_descriptor(int fd, std::span<const iovec> parts) {
  Control control{};
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  int error = 0;
  PassedBytes result;
  result.moved = moved(::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC), error);
  const cmsghdr* header = result.moved.flow == Flow::kMoved ? CMSG_FIRSTHDR(&message) : nullptr;
  const bool passed = header != nullptr && header->cmsg_level == SOL_SOCKET &&
                      header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(int));
  if (passed) std::memcpy(&result.descriptor, CMSG_DATA(header), sizeof(int));
  return result;
}

RingStream::RingStream(Socket socket, std::unique_ptr<RingMemory> memory, bool listening)
    : socket_(std::move(socket)),
      memory_(std::move(memory)),
      writer_(listening ? memory_->from_listener() : memory_->from_connector()),
      reader_(listening ? memory_->from_connector() : memory_->from_listener()) {}

void RingStream::ring() {
  // If the socket is full, the peer has unread bells and will wake up. If the peer is gone, notice() detects
  // that.
  const char bell = 1;
  [[maybe_unused]] const auto sent = ::send(socket_.fd(), &bell, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

Moved RingStream::read(std::span<const iovec> parts) {
  const std::size_t count = reader_.read(parts);
  if (reader_.broken()) return {.flow = Flow::kBroken};
  if (count == 0) return {.flow = ended_ ? Flow::kEnded : Flow::kNotNow};
  if (reader_.take_wake()) ring();
  return {.flow = Flow::kMoved, .bytes = count};
}

Moved RingStream::write(std::span<const iovec> parts) {
  std::size_t count = writer_.write(parts, kPublishBytes);
  if (count == 0 && writer_.arm()) count = writer_.write(parts, kPublishBytes);
  if (writer_.broken()) return {.flow = Flow::kBroken};
  if (count == 0) return {.flow = Flow::kNotNow};
  if (writer_.take_wake()) ring();
  return {.flow = Flow::kMoved, .bytes = count};
}

void RingStream::notice() {
  std::array<char, 256> bells;
  const ssize_t got = ::recv(socket_.fd(), bells.data(), bells.size(), MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) ended_ = true;
}

std::string RingStream::failure() const {
  return "it has put a place into the shared memory where its end cannot be";
}

}  // namespace trireme::wire
