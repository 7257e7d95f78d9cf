#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/topology/internal/exchange_step.h"

namespace trireme::topology {

Connections::Connections(const std::vector<Lane>& lanes, const std::vector<std::string>& names,
                         std::uint64_t tag)
    : lanes_(lanes), names_(names), ways_(lanes.size() * names.size()) {
  std::memcpy(tag_.data(), &tag, sizeof tag);
}

/// Bytes that are not of the tag.
std::size_t Connections::moved(const Line& line, long result, std::size_t& tag_done) const {
  const std::string& name = names_[static_cast<std::size_t>(line.peer)];
  if (result == 0) throw CommError(text("the connection to ", name, " has been closed by it"));
  if (result < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
    throw CommError(text("the connection to ", name, " is lost: ", std::strerror(errno)));
  }
  const auto bytes = static_cast<std::size_t>(result);
  const std::size_t of_tag = std::min(bytes, sizeof(Tag) - tag_done);
  tag_done += of_tag;
  return bytes - of_tag;
}

std::size_t Connections::send(const Line& line, std::span<const std::byte> bytes) {
  Ways& ways = ways_[place_of(line)];
  std::array<iovec, 2> parts{iovec{tag_.data() + ways.tag_sent, sizeof(Tag) - ways.tag_sent},
                             iovec{const_cast<std::byte*>(bytes.data()), bytes.size()}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return moved(line, ::sendmsg(fd(line), &message, MSG_NOSIGNAL), ways.tag_sent);
}

std::size_t Connections::receive(const Line& line, std::span<std::byte> bytes) {
  Ways& ways = ways_[place_of(line)];
  std::array<iovec, 2> parts{iovec{ways.theirs.data() + ways.tag_received, sizeof(Tag) - ways.tag_received},
                             iovec{bytes.data(), bytes.size()}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const std::size_t received = moved(line, ::recvmsg(fd(line), &message, 0), ways.tag_received);
  ways.differs = ways.tag_received == sizeof(Tag) && ways.theirs != tag_;
  return received;
}

void Connections::throw_late(const std::vector<int>& peers) const {
  std::vector<std::string> late;
  for (const int peer : peers) late.push_back(names_[static_cast<std::size_t>(peer)]);
  throw CommError(text("nothing has come from ", join(late), " by the deadline"));
}

void Connections::stand_still(int peer, const Deadline& deadline) const {
  std::vector<pollfd> polled;
  for (const Lane& lane : lanes_) {
    for (const auto& socket : lane) polled.push_back({.fd = socket.fd(), .events = 0, .revents = 0});
  }
  int ended = 0;
  while (ended <= 0 && !deadline.expired()) {
    const double left_ms = std::min(std::ceil(deadline.remaining_s() * 1000), 1e9);
    ended = ::poll(polled.data(), polled.size(), static_cast<int>(left_ms));
  }
  throw CommError(text(names_[static_cast<std::size_t>(peer)],
                       " is in another operation, or in one of another size or type"));
}

}  // namespace trireme::topology
