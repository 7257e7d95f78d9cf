// The channels of a loop: opening, the node's calls, closing.

#include "trireme/wire/internal/serving_loop.h"

#include <sys/epoll.h>

#include <cerrno>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/wire/user_key.h"

namespace trireme::wire {
namespace {

constexpr int kMaxAcceptedAtOnce = 64;
constexpr std::size_t kFewConnections = 16;  // of one peer, below which none is dropped

const char* name_of(CloseCause cause) {
  switch (cause) {
    case CloseCause::kByPeer:
      return "by peer";
    case CloseCause::kUnreachable:
      return "unreachable";
    case CloseCause::kRefused:
      return "refused";
    case CloseCause::kBadFrame:
      return "bad frame";
    case CloseCause::kTooSlow:
      return "too slow";
    case CloseCause::kSilent:
      return "silent";
  }
  return "unknown";
}

}  // namespace

TimerId NodeLoop::Impl::start_timer(double after_s) {
  const double seconds = std::min(std::max(after_s, 0.0), kLongestTimeout_s);
  return timers_.start(now_ns() + static_cast<std::int64_t>(seconds * 1e9));
}

Disk& NodeLoop::Impl::disk() {
  require(!options_.folder.empty(), "this node uses a disk: give its loop a folder");
  if (!disk_) disk_ = std::make_unique<FolderDisk>(options_.folder);
  return *disk_;
}

void NodeLoop::Impl::report(const std::string& line) {
  if (!options_.report) return;
  if (sleeps_) {
    later_.push_back([this, line] { options_.report(line); });
  } else {
    options_.report(line);
  }
}

ConnectionId NodeLoop::Impl::connect(const Address& address) {
  const ConnectionId id = ++last_id_;
  using Foreign = ChannelAddress::Foreign;
  const auto target =
      ChannelAddress::parse(address, options_.look_up ? Foreign::kAllowed : Foreign::kRefused);
  ChannelOwner& owner = *this;
  channels_[id].channel = std::make_unique<Channel>(id, settings_, owner, target);
  begin_connecting(id, target);
  return id;
}

void NodeLoop::Impl::begin_connecting(ConnectionId id, const ChannelAddress& target) {
  if (target.is_numeric()) {
    later_.push_back([this, id, found = look_up(target)] { resolved(id, found); });
    return;
  }
  // A DNS lookup may take long and must not block the loop.
  look_ups_.emplace_back([this, id, target] {
    LookedUp found = look_up(target);
    const auto self = std::this_thread::get_id();
    post([this, id, found = std::move(found), self] {
      const auto thread = std::ranges::find(look_ups_, self, &std::thread::get_id);
      thread->join();
      look_ups_.erase(thread);
      resolved(id, found);
    });
  });
  pthread_setname_np(look_ups_.back().native_handle(), "trireme-name");
}

NodeLoop::Impl::LookedUp NodeLoop::Impl::look_up(const ChannelAddress& target) const {
  try {
    const bool is_foreign = target.kind == TransportKind::kForeign;
    LookedUp found = {.target = is_foreign ? ChannelAddress::parse(options_.look_up(target.path)) : target};
    found.addresses = resolve(found.target);
    return found;
  } catch (const Error& error) {
    return {.target = target, .error = error.what()};
  }
}

void NodeLoop::Impl::resolved(ConnectionId id, LookedUp found) {
  Channel* channel = find(id);
  if (channel == nullptr) return;
  const auto refuse = [&](CloseCause cause, const std::string& refusal, const std::string& reason) {
    channel->close();
    channel_failed(*channel, cause, refusal, reason);
  };
  if (!found.error.empty()) return refuse(CloseCause::kUnreachable, "", found.error);
  try {
    for (const auto& each : found.addresses)
      require_proof(each, channel->peer_text(), options_.security.kind);
    if (found.target.kind == TransportKind::kTcp) take_user_key();
  } catch (const InvalidArgument& no_proof) {
    return refuse(CloseCause::kRefused, "no proof", no_proof.what());
  }
  channel->connect(std::move(found.target), std::move(found.addresses));
  const auto still = channels_.find(id);
  if (still != channels_.end()) watch(still->second);
}

void NodeLoop::Impl::send(ConnectionId connection, Message message) {
  Channel* channel = find(connection);
  if (channel == nullptr) return;
  if (!options_.node_registers) register_peer(connection);
  channel->send(std::move(message));
  unflushed_.insert(connection);
  if (std::cmp_less_equal(channel->waiting_bytes(), options_.max_waiting_bytes)) return;
  later_.push_back([this, connection] {
    Channel* slow = find(connection);
    if (slow == nullptr || std::cmp_less_equal(slow->waiting_bytes(), options_.max_waiting_bytes)) return;
    const std::string reason =
        text(human_bytes(slow->waiting_bytes()), " wait for it, and at most ",
             human_bytes(static_cast<std::uint64_t>(options_.max_waiting_bytes)), " may");
    slow->close();
    channel_failed(*slow, CloseCause::kTooSlow, "", reason);
  });
}

std::size_t NodeLoop::Impl::waiting_bytes(ConnectionId connection) const {
  const Channel* channel = find(connection);
  return channel == nullptr ? 0 : channel->waiting_bytes();
}

void NodeLoop::Impl::pause(ConnectionId connection) {
  Channel* channel = find(connection);
  if (channel == nullptr) return;
  channel->pause();
  watch(channels_.at(connection));
}

void NodeLoop::Impl::resume(ConnectionId connection) {
  Channel* channel = find(connection);
  if (channel == nullptr || !channel->paused()) return;
  channel->resume();
  watch(channels_.at(connection));
  if (channel->is_open()) busy_.insert(connection);
}

void NodeLoop::Impl::close(ConnectionId connection) {
  if (Channel* channel = find(connection)) channel->flush();  // sends as much as possible; this may fail
  ended_.erase(connection);
  if (find(connection) == nullptr) return;
  count("channels closed: by this end");
  forget(connection);
}

void NodeLoop::Impl::channel_opened(Channel& channel) {
  count("channels opened");
  if (channel.accepted()) {
    unauthenticated_.erase(channel.id());
    guests_.insert(channel.id());
    if (guests_.size() > max_guests_) later_.push_back([this] { trim_guests(); });
  }
  if (channel.asks_before_sleep()) unarmed_.insert(channel.id());
  unflushed_.insert(channel.id());
  node_->on_connected(channel.id(), channel.peer());
}

void NodeLoop::Impl::channel_message(Channel& channel, Message message) {
  if (!options_.node_registers) register_peer(channel.id());
  node_->on_message(channel.id(), std::move(message));
}

void NodeLoop::Impl::channel_failed(Channel& channel, CloseCause cause, const std::string& refusal,
                                    const std::string& reason) {
  const bool known_to_node = !channel.accepted() || channel.was_open();
  const std::string peer = channel.peer_text();
  const ConnectionId id = channel.id();
  count(text("channels closed: ", name_of(cause)));
  if (!refusal.empty()) count(text(name_of(cause), ": ", refusal));
  const std::string whole = text(peer, ": ", reason);
  const bool bad =
      cause != CloseCause::kByPeer && cause != CloseCause::kUnreachable && cause != CloseCause::kSilent;
  if (bad) {
    const auto line = complaints_.add(text("closed the channel of ", whole), peer, trireme::now_s());
    if (line) report(*line);
  }
  forget(id);
  // Reported later, so that on_closed() does not run inside a call of the node.
  if (known_to_node) ended_.insert_or_assign(id, Ended{cause, whole});
}

void NodeLoop::Impl::tell_ended() {
  while (!ended_.empty()) {
    const auto [id, end] = *ended_.begin();
    ended_.erase(id);
    node_->on_closed(id, end.cause, end.reason);
  }
}

void NodeLoop::Impl::accept_all(Listener& listener) {
  Socket socket;
  for (int i = 0; i < kMaxAcceptedAtOnce; ++i) {
    const auto accepted = listener.accept(socket);
    if (accepted == Listener::Accepted::kNone) return;
    if (accepted == Listener::Accepted::kNoDescriptors) {
      return rest_from_accepting();
    }
    count("channels accepted");
    if (!make_room()) {
      count("refused: no room");
      continue;
    }
    if (listener.kind() == TransportKind::kTcp) take_user_key();
    const ConnectionId id = ++last_id_;
    ChannelOwner& owner = *this;
    Known& known = channels_[id];
    known.network = network_of(socket.fd());
    known.channel = std::make_unique<Channel>(id, settings_, owner, listener.kind(), std::move(socket));
    ++num_accepted_;
    unauthenticated_.insert(id);
    known.channel->serve(EPOLLOUT);
    if (find(id) != nullptr) watch(channels_.at(id));
  }
}

void NodeLoop::Impl::rest_from_accepting() {
  count("no descriptors left");
  rests_from_accepting_ = true;
  for (const Listener& each : listeners_) {
    epoll_event nothing{};
    ::epoll_ctl(epoll_.fd(), EPOLL_CTL_MOD, each.fd(), &nothing);
  }
  if (!drop_oldest(unauthenticated_) && !drop_oldest(guests_)) drop_of_busiest_peer();
}

/// The previous key stays valid while the file cannot be read.
void NodeLoop::Impl::take_user_key() {
  if (options_.security.kind != Security::Kind::kLocal) return;
  try {
    settings_.handshake.secret = user_key();
  } catch (const InvalidArgument&) {
    if (settings_.handshake.secret.empty()) throw;
  }
}

/// Drops another connection if needed. Returns whether one more may be accepted.
bool NodeLoop::Impl::make_room() {
  if (unauthenticated_.size() >= max_guests_) return drop_oldest(unauthenticated_);
  if (num_accepted_ < max_accepted_) return true;
  return drop_oldest(unauthenticated_) || drop_oldest(guests_) || drop_of_busiest_peer();
}

void NodeLoop::Impl::trim_guests() {
  while (guests_.size() > max_guests_) drop_oldest(guests_);
}

/// Drops the oldest connection of the network that has most of them.
bool NodeLoop::Impl::drop_oldest(const std::set<ConnectionId>& of) {
  std::map<std::string_view, std::size_t> counts;
  for (const ConnectionId id : of) ++counts[channels_.at(id).network];
  if (counts.empty()) return false;
  const auto most = std::ranges::max_element(counts, {}, [](const auto& each) { return each.second; });
  const auto oldest =
      std::ranges::find_if(of, [&](ConnectionId id) { return channels_.at(id).network == most->first; });
  drop(*oldest, "too many strangers", "too many connections of its network address are no members yet");
  return true;
}

/// Finds the peer with most connections. If it has more than a few, drops its connection that has been silent
/// longest.
bool NodeLoop::Impl::drop_of_busiest_peer() {
  struct Busy {
    std::size_t count = 0;
    ConnectionId quietest = 0;
    double heard_at_s = 0;
  };
  std::map<std::string, Busy> peers;
  for (const auto& [id, known] : channels_) {
    const Channel& channel = *known.channel;
    if (!channel.accepted() || !channel.is_open()) continue;
    Busy& busy = peers[text(known.network, ' ', channel.peer().role, ' ', channel.peer().name)];
    if (busy.count++ > 0 && busy.heard_at_s <= channel.received_at_s()) continue;
    busy.quietest = id;
    busy.heard_at_s = channel.received_at_s();
  }
  const auto most = std::ranges::max_element(peers, {}, [](const auto& each) { return each.second.count; });
  if (most == peers.end() || most->second.count <= kFewConnections) return false;
  drop(most->second.quietest, "too many connections", "its peer has too many connections");
  return true;
}

void NodeLoop::Impl::drop(ConnectionId id, const std::string& refusal, const std::string& reason) {
  Channel& channel = *channels_.at(id).channel;
  if (channel.was_open()) {  // the node is notified
    channel.close();
    return channel_failed(channel, CloseCause::kRefused, refusal, reason);
  }
  count(text("refused: ", refusal));
  forget(id);
}

Channel* NodeLoop::Impl::find(ConnectionId id) const {
  const auto found = channels_.find(id);
  return found == channels_.end() ? nullptr : found->second.channel.get();
}

void NodeLoop::Impl::watch(Known& known) {
  const std::uint32_t wanted = known.channel->wanted_events();
  if (known.attempt != known.channel->attempt()) {  // closing removed the previous socket from epoll
    known.attempt = known.channel->attempt();
    known.events = 0;
  }
  if (wanted == known.events) return;
  epoll_event event{.events = wanted, .data = {.u64 = known.channel->id()}};
  // A descriptor without events stays out of epoll, which would report the peer's hang-up again and again.
  const int how = wanted == 0 ? EPOLL_CTL_DEL : known.events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  ::epoll_ctl(epoll_.fd(), how, known.channel->fd(), &event);
  known.events = wanted;
}

void NodeLoop::Impl::forget(ConnectionId id) {
  const auto found = channels_.find(id);
  Channel& channel = *found->second.channel;
  unauthenticated_.erase(id);
  guests_.erase(id);
  if (channel.accepted()) --num_accepted_;
  count("frames received", channel.num_frames_in());
  count("frames sent", channel.num_frames_out());
  count("bytes received", channel.num_bytes_in());
  count("bytes sent", channel.num_bytes_out());
  channel.close();
  closing_channels_.push_back(std::move(found->second.channel));
  channels_.erase(found);
  unarmed_.erase(id);
}

void NodeLoop::Impl::count(const std::string& what, std::uint64_t how_many) {
  const std::lock_guard lock(mutex_);
  counts_[what] += how_many;
}

ChannelCounts NodeLoop::Impl::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace trireme::wire
