// Connections over UCX: bytes are tagged messages. Any two members also have a plain TCP connection. It
// serves for authentication, for the exchange of UCX addresses, and for the detection of members that are
// gone.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/file_descriptor.h"
#include "trireme/topology/internal/connections.h"
#include "trireme/topology/internal/introduction.h"
#include "trireme/topology/internal/members.h"
#include "trireme/topology/internal/ucx_object.h"

namespace trireme::topology {
namespace {

// Fields of a tag: sender, lane, and operation (13 bits of its number, and its hash).
constexpr int kOperationBits = 45, kLaneBits = 7, kSenderBits = 12;
constexpr std::uint64_t kOperationMask = (1ull << kOperationBits) - 1;
// The last lane has only the first and the last message of a member, no operations.
constexpr std::size_t kLastLane = (1u << kLaneBits) - 1;
static_assert(kMaxLanes <= static_cast<int>(kLastLane));
constexpr std::uint64_t kHello = 0, kFarewell = 1;

// Pending messages of a line in each direction. The second begins to arrive while the first is processed.
constexpr std::size_t kUnderWay = 4;
// Time limit of a farewell, whose receivers may be gone.
constexpr double kLeaves_s = 2;
constexpr std::array kByte{std::byte{1}};
// An address has some hundred bytes for each adapter.
constexpr std::size_t kMaxAddressBytes = 1 << 20;

std::uint64_t tag_of(int sender, std::size_t lane, std::uint64_t operation) {
  return static_cast<std::uint64_t>(sender) << (kOperationBits + kLaneBits) |
         static_cast<std::uint64_t>(lane) << kOperationBits | (operation & kOperationMask);
}

/// Interrupts a wait for descriptors.
class Wake {
 public:
  Wake() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (!fd_.is_open()) throw CommError(text("cannot make an event: ", std::strerror(errno)));
  }
  int fd() const { return fd_.get(); }
  void ring() const { ::eventfd_write(fd_.get(), 1); }

 private:
  const FileDescriptor fd_;
};

class UcxConnections : public Connections {
 public:
  UcxConnections(const wire::Socket& listening, const Membership& membership, const Deadline& deadline)
      : rank_(membership.rank),
        names_(membership.names),
        lanes_(membership.lanes),
        presences_(names_.size()) {
    require(names_.size() <= 1u << kSenderBits, "UCX between ", names_.size(), " members: at most ",
            1 << kSenderBits);
    require(ucx_object().missing_because.empty(), "the network 'ucx': ", ucx_object().missing_because);
    controls_ = std::move(connect_members(listening, membership, 0, 1, deadline).front());
    worker_.reset(ucx_object().make_worker(static_cast<int>(names_.size())));
    connect(deadline);
    begin(0);
    end();
    server_ = std::thread([this] { serve(); });
  }

  ~UcxConnections() override {
    {
      const std::lock_guard lock(mutex_);
      stops_serving_ = true;
    }
    is_free_.notify_all();
    wake_.ring();
    server_.join();
    if (!dropped_) leave();
    worker_->close();
  }

  int num_lanes() const override { return lanes_; }
  void set_lanes(int lanes, const wire::Socket&, const Membership&, const Deadline&) override {
    lanes_ = lanes;
  }

  void begin(std::uint64_t tag) override {
    {
      const std::lock_guard lock(mutex_);
      is_in_operation_ = true;
    }
    operation_ = tag;
    const std::size_t lines = names_.size() * static_cast<std::size_t>(lanes_);
    sends_.assign(lines, {});
    receives_.assign(lines, {});
  }

  std::size_t send(const Line& line, std::span<const std::byte> bytes) override {
    const std::uint64_t tag = tag_of(rank_, line.lane, operation_);
    return moved(sends_[place_of(line)], bytes.size(), [&](std::size_t at, std::size_t size) {
      return worker_->send(line.peer, tag, bytes.subspan(at, size));
    });
  }

  std::size_t receive(const Line& line, std::span<std::byte> bytes) override {
    const std::uint64_t tag = tag_of(line.peer, line.lane, operation_);
    return moved(receives_[place_of(line)], bytes.size(), [&](std::size_t at, std::size_t size) {
      return worker_->receive(tag, bytes.subspan(at, size));
    });
  }

  /// A message of another operation has another tag. It waits until it is received.
  bool differs(const Line&) const override { return false; }

  void wait(std::span<const Line> receives, std::span<const Line> sends, const Deadline& deadline) override {
    const std::vector<int> from = peers_of(receives), to = peers_of(sends);
    if (!wait_for(from, to, deadline)) return;
    for (const int peer : from) require_same_operation(peer);
    std::vector<Line> all(receives.begin(), receives.end());
    all.insert(all.end(), sends.begin(), sends.end());
    throw_late(names_, all);
  }

  [[noreturn]] void stand_still(int peer, const Deadline&) override { throw_differs(name_of(peer)); }

  void end() override {
    {
      const std::lock_guard lock(mutex_);
      is_in_operation_ = false;
    }
    is_free_.notify_all();
  }

  void abort() override {
    for (const wire::Socket& each : controls_) {
      if (each.fd() >= 0) ::shutdown(each.fd(), SHUT_RDWR);
    }
  }

  void drop() override {
    {
      const std::lock_guard lock(mutex_);
      stops_serving_ = true;
    }
    is_free_.notify_all();
    dropped_ = true;
    worker_->close();
  }

 private:
  /// Pending parts of a line in one direction, in order.
  struct Way {
    struct Part {
      UcxWorker::Request request;
      std::size_t bytes;
    };
    std::deque<Part> parts;
    std::size_t started = 0;  ///< bytes of `parts`
  };
  /// Whether a member is present. Its farewell comes by UCX, after all of its other messages. Over TCP it
  /// reports that it has sent one. A connection that ends without this report was not ended by the member.
  struct Presence {
    UcxWorker::Request farewell = nullptr;
    bool has_said = false, has_closed = false;
    std::array<std::byte, 1> received{};
  };

  std::size_t place_of(const Line& line) const {
    return line.lane * names_.size() + static_cast<std::size_t>(line.peer);
  }
  static std::vector<int> peers_of(std::span<const Line> lines) {
    std::vector<int> peers;
    for (const Line& line : lines) {
      if (std::ranges::find(peers, line.peer) == peers.end()) peers.push_back(line.peer);
    }
    return peers;
  }
  std::vector<int> others() const {
    std::vector<int> peers;
    for (int peer = 0; std::cmp_less(peer, names_.size()); ++peer) {
      if (peer != rank_) peers.push_back(peer);
    }
    return peers;
  }
  const std::string& name_of(int peer) const { return names_[static_cast<std::size_t>(peer)]; }

  /// Members exchange addresses over TCP, then a message over UCX, which completes the connections at both
  /// ends.
  void connect(const Deadline& deadline) {
    const std::vector<std::byte> mine = worker_->address();
    for (const wire::Socket& control : controls_) {
      if (control.fd() < 0) continue;
      send_value(control, mine.size(), deadline);
      wire::send_all(control, mine, deadline);
    }
    for (std::size_t peer = 0; peer < controls_.size(); ++peer) {
      if (controls_[peer].fd() < 0) continue;
      const auto size = receive_value<std::size_t>(controls_[peer], deadline);
      if (size > kMaxAddressBytes)
        throw CommError(
            text("a UCX address of ", size, " bytes from ", names_[peer], ": at most ", kMaxAddressBytes));
      std::vector<std::byte> theirs(size);
      wire::receive_all(controls_[peer], theirs, deadline);
      worker_->connect(static_cast<int>(peer), theirs);
      presences_[peer].farewell =
          worker_->receive(tag_of(static_cast<int>(peer), kLastLane, kFarewell), presences_[peer].received);
    }
    // A connection is complete at both ends when a message has arrived over it.
    std::vector<UcxWorker::Request> hellos;
    for (const int peer : others())
      hellos.push_back(worker_->send(peer, tag_of(rank_, kLastLane, kHello), kByte));
    for (std::size_t i = 0; i < hellos.size(); ++i) {
      const int peer = others()[i];
      UcxWorker::Request theirs = worker_->receive(tag_of(peer, kLastLane, kHello),
                                                   presences_[static_cast<std::size_t>(peer)].received);
      while (!worker_->is_over(theirs)) {
        if (wait_for({&peer, 1}, {}, deadline)) throw_late(names_, std::array{Line{peer, 0}});
      }
      send_off(hellos[i], peer, deadline);
    }
  }

  /// Sends a farewell after all other messages, then waits for those of the others. A member that closes too
  /// early would cut off messages of others. The wait is limited.
  void leave() {
    const Deadline deadline = Deadline::after_s(kLeaves_s);
    for (const int peer : others()) {
      try {
        UcxWorker::Request farewell = worker_->send(peer, tag_of(rank_, kLastLane, kFarewell), kByte);
        send_off(farewell, peer, deadline);
        wire::send_all(controls_[static_cast<std::size_t>(peer)], kByte, deadline);
      } catch (const CommError&) {  // a member that is gone needs no farewell
      }
    }
    for (const int peer : others()) {
      try {
        finish(presences_[static_cast<std::size_t>(peer)].farewell, peer, deadline);
      } catch (const CommError&) {
      }
    }
  }

  /// A peer that has its message may leave before this member is notified. This is no error: the next
  /// operation reports that the peer is gone.
  void send_off(UcxWorker::Request& request, int peer, const Deadline& deadline) {
    try {
      finish(request, peer, deadline);
    } catch (const CommError&) {
      if (deadline.expired()) throw;
    }
  }

  void finish(UcxWorker::Request& request, int peer, const Deadline& deadline) {
    while (!worker_->is_over(request)) {
      if (wait_for({}, {&peer, 1}, deadline)) throw_late(names_, std::array{Line{peer, 0}});
    }
  }

  /// Between operations: makes progress for requests that are complete here, but not yet at other members.
  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      is_free_.wait(lock, [&] { return !is_in_operation_ || stops_serving_; });
      if (stops_serving_) return;
      try {
        if (worker_->progress() || !worker_->arm()) continue;
      } catch (const CommError&) {  // the next operation reports it
        return;
      }
      lock.unlock();
      std::array<pollfd, 2> polled{pollfd{.fd = worker_->fd(), .events = POLLIN, .revents = 0},
                                   pollfd{.fd = wake_.fd(), .events = POLLIN, .revents = 0}};
      ::poll(polled.data(), polled.size(), -1);
      lock.lock();
    }
  }

  template <class Start>
  std::size_t moved(Way& way, std::size_t bytes, const Start& start) {
    while (way.started < bytes && way.parts.size() < kUnderWay) {
      const std::size_t size = std::min(bytes - way.started, kBlockBytes);
      way.parts.push_back({start(way.started, size), size});
      way.started += size;
    }
    progress();
    std::size_t over = 0;
    while (!way.parts.empty() && worker_->is_over(way.parts.front().request)) {
      over += way.parts.front().bytes;
      way.parts.pop_front();
    }
    way.started -= over;
    return over;
  }

  void progress() {
    if (worker_->progress()) has_moved_ = true;
  }

  /// Waits until something has moved since the last call; true at the deadline. Throws if a member of `from`
  /// or `to` is gone.
  bool wait_for(std::span<const int> from, std::span<const int> to, const Deadline& deadline) {
    progress();
    // The last progress may have completed the request: the caller checks it before a member counts as gone.
    if (std::exchange(has_moved_, false)) return false;
    // Only for receives: a member that has left may have received messages that are not complete here, until
    // it closes.
    for (const int peer : from) {
      if (presences_[static_cast<std::size_t>(peer)].has_said && has_left(peer)) throw_gone(peer);
    }
    std::vector<int> peers(from.begin(), from.end());
    peers.insert(peers.end(), to.begin(), to.end());
    std::vector<pollfd> polled{{.fd = worker_->fd(), .events = POLLIN, .revents = 0}};
    for (const int peer : peers) {
      if (presences_[static_cast<std::size_t>(peer)].has_closed) throw_gone(peer);
      polled.push_back(
          {.fd = controls_[static_cast<std::size_t>(peer)].fd(), .events = POLLIN, .revents = 0});
    }
    if (!worker_->arm()) return false;
    const double left_ms = std::min(std::ceil(deadline.remaining_s() * 1000), 1e9);
    const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(left_ms));
    if (ready < 0 && errno != EINTR) throw CommError(text("cannot wait for sockets: ", std::strerror(errno)));
    for (std::size_t i = 0; ready > 0 && i < peers.size(); ++i) {
      if (polled[i + 1].revents != 0) hear(peers[i]);
    }
    return ready <= 0 && deadline.expired();
  }

  /// Whether a member has left in order. All of its messages have arrived.
  bool has_left(int peer) {
    Presence& presence = presences_[static_cast<std::size_t>(peer)];
    return worker_->is_over(presence.farewell);
  }

  /// A first message of another operation is still unreceived: this is the error to report.
  void require_same_operation(int peer) const {
    const auto tag = worker_->first_left(tag_of(peer, 0, 0), ~kOperationMask);
    if (tag && *tag != tag_of(peer, 0, operation_)) throw_differs(name_of(peer));
  }
  [[noreturn]] void throw_gone(int peer) const {
    require_same_operation(peer);
    throw CommError(text("the connection to ", name_of(peer), " has been closed by it"));
  }

  /// Reads a member's TCP connection: its report of a farewell, or the end.
  void hear(int peer) {
    Presence& presence = presences_[static_cast<std::size_t>(peer)];
    std::byte said{};
    const auto received = ::recv(controls_[static_cast<std::size_t>(peer)].fd(), &said, 1, MSG_DONTWAIT);
    if (received == 1) presence.has_said = true;
    presence.has_closed = received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR);
  }

  const int rank_;
  const std::vector<std::string> names_;
  int lanes_;
  Lane controls_;
  std::uint64_t operation_ = 0;
  std::vector<Way> sends_, receives_;  ///< by place
  std::vector<Presence> presences_;    ///< by member
  bool has_moved_ = false;
  std::mutex mutex_;
  std::condition_variable is_free_;  ///< the worker: an operation uses it, otherwise `server_`
  bool is_in_operation_ = true;
  bool stops_serving_ = false;
  Wake wake_;
  std::thread server_;
  bool dropped_ = false;
  std::unique_ptr<UcxWorker> worker_;  // destroyed first: its last calls use the other members
};

}  // namespace

std::unique_ptr<Connections> make_ucx_connections(const wire::Socket& listening, const Membership& membership,
                                                  const Deadline& deadline) {
  return std::make_unique<UcxConnections>(listening, membership, deadline);
}

}  // namespace trireme::topology
