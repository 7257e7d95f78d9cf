// Opening of a channel: connection, authentication and handshake. channel_open.cpp has the rest.

#include "trireme/wire/internal/channel.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "trireme/base/error.h"

namespace trireme::wire {
namespace {

// Limit of unsent bytes in the kernel's buffer of a connection: priorities cannot reorder these.
constexpr int kMaxUnsentBytes = 1 << 20;

void set_option(int fd, int level, int option, int value) {
  ::setsockopt(fd, level, option, &value, sizeof value);
}

/// Disables Nagle's algorithm; keepalive probes detect a host that has lost power.
void tune_tcp(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kMaxUnsentBytes);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

constexpr int kUnixBufferBytes = 1 << 20;

constexpr std::uint32_t kReadable = EPOLLIN, kWritable = EPOLLOUT;

}  // namespace

Channel::Channel(ConnectionId id, ChannelSettings& settings, ChannelOwner& owner, ChannelAddress target)
    : id_(id),
      settings_(settings),
      owner_(owner),
      accepted_(false),
      target_(std::move(target)),
      far_end_(target_.text()),
      deadline_(Deadline::after_s(settings.connect_s)),
      decoder_(settings.limits, settings.pool),
      queue_(settings.queue) {}

Channel::Channel(ConnectionId id, ChannelSettings& settings, ChannelOwner& owner, TransportKind kind,
                 Socket socket)
    : id_(id),
      settings_(settings),
      owner_(owner),
      accepted_(true),
      target_{.kind = kind},
      connecting_(std::move(socket)),
      far_end_(far_end(connecting_.fd())),
      deadline_(Deadline::after_s(settings.handshake_s)),
      decoder_(settings.limits, settings.pool),
      queue_(settings.queue) {
  connected();
}

Channel::~Channel() = default;

int Channel::fd() const { return stream_ ? stream_->fd() : connecting_.fd(); }

std::uint32_t Channel::wanted_events() const {
  switch (state_) {
    case State::kConnecting:
      return connecting_.fd() >= 0 ? kWritable : 0;
    case State::kSecuring:
    case State::kMeeting:
      return handshake_out_.empty() && !stream_->has_output() ? kReadable : kReadable | kWritable;
    case State::kOpen: {
      const bool reads = !paused_ || stream_->watched_while_paused();
      const bool writes = blocked_ && !stream_->tells_room_by_input();
      return (reads ? kReadable : 0) | (writes ? kWritable : 0);
    }
    case State::kClosed:
      return 0;
  }
  return 0;
}

std::string Channel::peer_text() const {
  if (!handshake_ || handshake_->state() != Handshake::State::kDone) return far_end_;
  const PeerIdentity& peer = handshake_->peer();
  const std::string who =
      peer.role.empty() || peer.name.empty() ? peer.role + peer.name : text(peer.role, " ", peer.name);
  return who.empty() ? far_end_ : text(who, " at ", far_end_);
}

void Channel::connect(ChannelAddress target, std::vector<SocketAddress> addresses) {
  target_ = std::move(target);
  far_end_ = target_.text();
  addresses_ = std::move(addresses);
  std::ranges::reverse(addresses_);
  try_next_address("it has no address");
}

void Channel::try_next_address(const std::string& reason_so_far) {
  std::string reason = reason_so_far;
  while (!addresses_.empty()) {
    const SocketAddress address = addresses_.back();
    addresses_.pop_back();
    ++attempt_;
    connecting_ = Socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (connecting_.fd() >= 0) {
      if (::connect(connecting_.fd(), address.get(), address.length) == 0) return connected();
      if (errno == EINPROGRESS) return;
    }
    reason = std::strerror(errno);
    connecting_ = Socket();
  }
  fail(CloseCause::kUnreachable, "", text("no process answers at ", target_.text(), ": ", reason));
}

void Channel::connected() {
  if (target_.kind == TransportKind::kTcp) {
    tune_tcp(connecting_.fd());
  } else {
    set_option(connecting_.fd(), SOL_SOCKET, SO_SNDBUF, kUnixBufferBytes);
  }
  deadline_ = Deadline::after_s(settings_.handshake_s);
  near_end_ = near_end(connecting_.fd());
  const bool tcp = target_.kind == TransportKind::kTcp;
  if (accepted_) far_end_ = tcp ? far_end(connecting_.fd()) : near_end_;
  if (!settings_.tls || !tcp) {
    auto plain = std::make_unique<SocketStream>(std::move(connecting_));
    plain_ = plain.get();
    stream_ = std::move(plain);
    return begin_meeting();
  }
  auto tls = std::make_unique<TlsStream>(*settings_.tls, std::move(connecting_), accepted_);
  tls_ = tls.get();
  stream_ = std::move(tls);
  state_ = State::kSecuring;
}

void Channel::secure() {
  const Flow flow = tls_->secure();
  if (flow == Flow::kNotNow) return;
  if (flow != Flow::kMoved) {
    const std::string why = flow == Flow::kEnded ? "it has closed during the handshake" : tls_->failure();
    const char* what_to_do = settings_.tls->has_certificates()
                                 ? ""
                                 : "; both ends need the same secret and encryption (--encrypt)";
    return fail(CloseCause::kRefused, "tls", text("TLS: ", why, what_to_do));
  }
  if (settings_.tls->has_certificates()) proved_ = tls_->identity();
  if (settings_.tls->has_certificates() && !proved_) {
    return fail(CloseCause::kRefused, "no role",
                "its certificate does not say who it is; expected a name ROLE.NAME (subjectAltName, DNS)");
  }
  begin_meeting();
}

bool Channel::right_user() {
  if (target_.kind == TransportKind::kTcp) return true;
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(fd(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return false;
  return peer.uid == ::geteuid() && (target_.kind != TransportKind::kInproc || peer.pid == ::getpid());
}

void Channel::begin_meeting() {
  HandshakeOptions options = settings_.handshake;
  const std::string far = far_end(stream_->fd());
  options.listening = accepted_;
  options.listening_address = accepted_ ? near_end_ : far;
  options.connecting_address = accepted_ ? far : near_end_;
  options.proved = proved_;
  options.kernel_names_user = target_.kind != TransportKind::kTcp;
  if (options.kernel_names_user && options.security == Security::Kind::kLocal) options.secret = {};
  if (target_.kind != TransportKind::kUnix) options.shared_memory = false;
  state_ = State::kMeeting;
  handshake_.emplace(std::move(options));
  handshake_out_ = handshake_->take_output();
}

void Channel::serve(std::uint32_t events) {
  if (state_ == State::kConnecting) {
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(connecting_.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return try_next_address(std::strerror(error));
    connected();
  }
  if (state_ == State::kSecuring) {
    secure();
    events |= EPOLLIN;  // bytes after the TLS handshake may already be buffered
  }
  if (state_ == State::kMeeting) return meet(events);
  if (state_ != State::kOpen) return;
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
    stream_->notice();
    if (blocked_ && stream_->tells_room_by_input()) {
      blocked_ = false;
      flush();
    }
    if (!paused_) receive();
  }
  if (is_open() && (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0) {
    blocked_ = false;
    flush();
  }
}

void Channel::meet(std::uint32_t events) {
  if (!right_user()) return fail(CloseCause::kRefused, "other user", "it belongs to another user");
  if (!write_meeting()) return;
  while ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 &&
         handshake_->state() == Handshake::State::kUnderWay) {
    std::string bytes;
    const Flow flow = read_meeting(handshake_->wanted(), bytes);
    if (flow == Flow::kNotNow) break;
    if (flow != Flow::kMoved) {
      const std::string reason =
          flow == Flow::kEnded ? "it has closed during the handshake" : stream_->failure();
      // In TLS 1.3 the connecting end learns only here that its certificate was rejected.
      const bool refused = tls_ != nullptr && flow == Flow::kFailed;
      return fail(refused ? CloseCause::kRefused : CloseCause::kByPeer, refused ? "tls" : "broken off",
                  reason);
    }
    handshake_->take(bytes);
    handshake_out_ += handshake_->take_output();
  }
  const bool done = handshake_->state() == Handshake::State::kDone;
  if (done && handshake_->shared_memory() && !memory_ && !share_memory()) return;
  if (!write_meeting()) return;
  if (handshake_->state() == Handshake::State::kRefused) {
    return fail(CloseCause::kRefused, handshake_->refusal(), handshake_->reason());
  }
  if (done && handshake_out_.empty()) open();
}

Flow Channel::read_meeting(std::size_t wanted, std::string& bytes) {
  bytes.resize(wanted);
  const iovec part{bytes.data(), bytes.size()};
  Moved moved;
  if (settings_.handshake.shared_memory && !accepted_ && target_.kind == TransportKind::kUnix) {
    auto passed = read_with_descriptor(stream_->fd(), {&part, 1});
    if (passed.descriptor >= 0) memory_ = RingMemory::receive(passed.descriptor);
    moved = passed.moved;
  } else {
    moved = stream_->read({&part, 1});
  }
  bytes.resize(moved.bytes);
  return moved.flow;
}

bool Channel::share_memory() {
  try {
    if (!accepted_) throw CommError("it has passed no memory for a channel");
    memory_ = RingMemory::create(settings_.ring_bytes);
    // The socket buffer has room: only the handshake was sent so far.
    if (pass_descriptor(stream_->fd(), memory_->descriptor(), handshake_out_)) return true;
    fail(CloseCause::kByPeer, "broken off", "it does not take the memory of the channel");
  } catch (const CommError& error) {
    fail(CloseCause::kRefused, "no memory", error.what());
  }
  return false;
}

bool Channel::write_meeting() {
  while (!handshake_out_.empty()) {
    const iovec part{handshake_out_.data(), handshake_out_.size()};
    const Moved moved = stream_->write({&part, 1});
    if (moved.flow == Flow::kNotNow) return true;
    if (moved.flow != Flow::kMoved) {
      fail(CloseCause::kByPeer, "broken off", stream_->failure());
      return false;
    }
    handshake_out_.erase(0, moved.bytes);
  }
  if (stream_->has_output() && stream_->flush() == Flow::kFailed) {
    fail(CloseCause::kByPeer, "broken off", stream_->failure());
    return false;
  }
  return true;
}

void Channel::look_at_clock(double patience_s, double guest_s) {
  if (state_ == State::kClosed) return;
  if (now_s() - began_s_ > guest_s)
    return fail(CloseCause::kRefused, "not registered",
                text("it has not registered within ", human_duration(guest_s)));
  if (state_ != State::kOpen) {
    if (!deadline_.expired()) return;
    if (state_ == State::kConnecting) {
      return fail(
          CloseCause::kUnreachable, "",
          text("nothing came back from ", target_.text(), " within ", human_duration(settings_.connect_s)));
    }
    return fail(accepted_ ? CloseCause::kRefused : CloseCause::kSilent, "handshake too slow",
                text("it has not finished the handshake within ", human_duration(settings_.handshake_s)));
  }
  const double now = now_s();
  if (has_output() && now - sent_at_s_ > patience_s) {
    return fail(CloseCause::kTooSlow, "",
                text("it has taken nothing for ", human_duration(patience_s), " while ",
                     human_bytes(waiting_bytes()), " wait"));
  }
  if (!paused_ && decoder_.in_frame() && now - received_at_s_ > patience_s) {
    fail(CloseCause::kTooSlow, "", text("it has sent no more of a frame for ", human_duration(patience_s)));
  }
}

void Channel::fail(CloseCause cause, const std::string& refusal, const std::string& reason) {
  state_ = State::kClosed;
  // The owner counts and reports before it closes the socket: once the close is visible, the reason is
  // readable.
  owner_.channel_failed(*this, cause, refusal, reason);
}

void Channel::close() {
  state_ = State::kClosed;
  addresses_.clear();
  connecting_ = Socket();
  stream_.reset();
  plain_ = nullptr;
  tls_ = nullptr;
  memory_.reset();
}

}  // namespace trireme::wire
