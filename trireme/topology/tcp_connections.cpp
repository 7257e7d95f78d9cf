// Connections over TCP: the bytes of a line are those of its connection. Each operation begins with its tag.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/topology/internal/connections.h"
#include "trireme/topology/internal/members.h"

namespace trireme::topology {
namespace {

int whole_ms(const Deadline& deadline) {
  return static_cast<int>(std::min(std::ceil(deadline.remaining_s() * 1000), 1e9));
}

class TcpConnections : public Connections {
 public:
  TcpConnections(const wire::Socket& listening, const Membership& membership, const Deadline& deadline)
      : names_(membership.names),
        lanes_(connect_members(listening, membership, 0, membership.lanes, deadline)) {}

  int num_lanes() const override { return static_cast<int>(lanes_.size()); }

  void set_lanes(int lanes, const wire::Socket& listening, const Membership& membership,
                 const Deadline& deadline) override {
    if (lanes < num_lanes()) return lanes_.resize(static_cast<std::size_t>(lanes));
    for (Lane& lane : connect_members(listening, membership, num_lanes(), lanes - num_lanes(), deadline))
      lanes_.push_back(std::move(lane));
  }

  void begin(std::uint64_t tag) override {
    std::memcpy(tag_.data(), &tag, sizeof tag);
    ways_.assign(lanes_.size() * names_.size(), {});
  }

  std::size_t send(const Line& line, std::span<const std::byte> bytes) override {
    Ways& ways = ways_[place_of(line)];
    std::array<iovec, 2> parts{iovec{tag_.data() + ways.tag_sent, sizeof(Tag) - ways.tag_sent},
                               iovec{const_cast<std::byte*>(bytes.data()), bytes.size()}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    return moved(line, ::sendmsg(fd(line), &message, MSG_NOSIGNAL), ways.tag_sent);
  }

  std::size_t receive(const Line& line, std::span<std::byte> bytes) override {
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

  bool differs(const Line& line) const override { return ways_[place_of(line)].differs; }

  void wait(std::span<const Line> receives, std::span<const Line> sends, const Deadline& deadline) override {
    std::vector<pollfd> polled;
    for (const Line& line : receives) polled.push_back({.fd = fd(line), .events = POLLIN, .revents = 0});
    for (const Line& line : sends) polled.push_back({.fd = fd(line), .events = POLLOUT, .revents = 0});
    const int ready = ::poll(polled.data(), polled.size(), whole_ms(deadline));
    if (ready < 0 && errno != EINTR) throw CommError(text("cannot wait for sockets: ", std::strerror(errno)));
    if (ready > 0 || !deadline.expired()) return;
    std::vector<Line> all(receives.begin(), receives.end());
    all.insert(all.end(), sends.begin(), sends.end());
    throw_late(names_, all);
  }

  [[noreturn]] void stand_still(int peer, const Deadline& deadline) override {
    std::vector<pollfd> polled;
    for (const Lane& lane : lanes_) {
      for (const auto& socket : lane) polled.push_back({.fd = socket.fd(), .events = 0, .revents = 0});
    }
    int ended = 0;
    while (ended <= 0 && !deadline.expired())
      ended = ::poll(polled.data(), polled.size(), whole_ms(deadline));
    throw_differs(names_[static_cast<std::size_t>(peer)]);
  }

  void end() override {}

  void abort() override {
    for (const Lane& lane : lanes_) {
      for (const auto& socket : lane) {
        if (socket.fd() >= 0) ::shutdown(socket.fd(), SHUT_RDWR);
      }
    }
  }

  void drop() override {}  // the kernel has copies of all pending data

 private:
  using Tag = std::array<std::byte, sizeof(std::uint64_t)>;
  struct Ways {
    std::size_t tag_sent = 0, tag_received = 0;
    Tag theirs{};
    bool differs = false;
  };

  std::size_t place_of(const Line& line) const {
    return line.lane * names_.size() + static_cast<std::size_t>(line.peer);
  }
  int fd(const Line& line) const { return lanes_[line.lane][static_cast<std::size_t>(line.peer)].fd(); }

  /// Number of transferred bytes that are not part of the tag.
  std::size_t moved(const Line& line, long result, std::size_t& tag_done) const {
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

  const std::vector<std::string> names_;
  std::vector<Lane> lanes_;
  Tag tag_{};
  std::vector<Ways> ways_;
};

}  // namespace

std::unique_ptr<Connections> make_tcp_connections(const wire::Socket& listening, const Membership& membership,
                                                  const Deadline& deadline) {
  return std::make_unique<TcpConnections>(listening, membership, deadline);
}

}  // namespace trireme::topology
