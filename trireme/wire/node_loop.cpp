#include "trireme/wire/node_loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/wire/internal/serving_loop.h"

namespace trireme::wire {
namespace {

constexpr double kDefaultSpin_s = 50e-6;
constexpr double kMinSpin_s = 1e-6;
constexpr double kCrowded_s = 0.1;  // without spinning, after a spin that was preempted
constexpr int kCoresForSpinning = 4;
constexpr double kClockEvery_s = 0.05, kIdleClockEvery_s = 0.25;
constexpr int kMaxEvents = 64;
constexpr std::size_t kMaxGuests = 512;
// Tags of epoll events. Ids of channels begin above them.
constexpr std::uint64_t kWakeTag = 0, kFirstListenerTag = 1, kFirstId = 1 << 16;

/// Maximum number of open descriptors of the process.
std::size_t descriptors() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 1024;
}

/// Involuntary context switches of the calling thread.
long num_preemptions() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

ChannelSettings settings_of(const NodeLoopOptions& options) {
  const auto& limits = options.limits;
  require(limits.max_message_bytes > 0 && limits.max_unfinished_bytes >= limits.max_message_bytes,
          "max_message_bytes is ", limits.max_message_bytes, " and max_unfinished_bytes ",
          limits.max_unfinished_bytes, "; expected the first above zero and the second no less");
  require(options.chunk_bytes >= 4096 && options.age_bytes >= options.chunk_bytes, "chunk_bytes is ",
          options.chunk_bytes, " and age_bytes ", options.age_bytes,
          "; expected at least 4096, and the second no less than the first");
  const bool knows = options.security.kind != Security::Kind::kSecret || !options.security.secret.empty();
  require(knows, "the security of channels is a secret, and none is given");
  const std::string& role = options.security.secret.role();
  require(role.empty() || options.listen.empty(), "a process with the key of ", role,
          " alone cannot listen for others: give it the whole secret");
  ChannelSettings result;
  result.handshake = {.security = options.security.kind,
                      .secret = options.security.secret,
                      .self = options.self,
                      .limits = options.limits,
                      .shared_memory = options.shared_memory == SharedMemoryUse::kWherePossible};
  if (!role.empty())
    result.handshake.self = {.role = role.substr(0, role.find('.')), .name = role.substr(role.find('.') + 1)};
  const Handshake throws_for_a_name_that_cannot_be(result.handshake);
  result.queue = {.chunk_bytes = options.chunk_bytes,
                  .age_bytes = options.age_bytes,
                  .max_unfinished_bytes = limits.max_unfinished_bytes};
  result.limits = limits;
  require(std::has_single_bit(options.ring_bytes) && options.ring_bytes >= 4096 &&
              options.ring_bytes <= 256 << 20,
          "ring_bytes is ", options.ring_bytes, "; expected a power of two from 4096 to 256 MiB");
  result.ring_bytes = options.ring_bytes;
  if (options.security.kind == Security::Kind::kTls) {
    result.tls = std::make_shared<TlsContext>(options.security.tls);
  } else if (options.security.kind == Security::Kind::kSecret && options.security.encrypted) {
    result.tls = std::make_shared<TlsContext>(options.security.secret, result.handshake.self);
  }
  result.handshake_s = options.handshake_s;
  result.connect_s = options.connect_s;
  result.pool = BufferPool::create(options.max_pooled_bytes);
  return result;
}

}  // namespace

NodeLoop::Impl::Impl(NodeLoopOptions options)
    : options_(std::move(options)),
      settings_(settings_of(options_)),
      max_guests_(options_.max_strangers > 0 ? static_cast<std::size_t>(options_.max_strangers)
                                             : std::clamp<std::size_t>(descriptors() / 8, 1, kMaxGuests)),
      max_accepted_(options_.max_accepted > 0 ? static_cast<std::size_t>(options_.max_accepted)
                                              : std::max<std::size_t>(descriptors() - descriptors() / 16, 1)),
      spin_s_(options_.spin_s >= 0                     ? options_.spin_s
              : available_cores() >= kCoresForSpinning ? kDefaultSpin_s
                                                       : 0),
      next_spin_s_(spin_s_),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      last_id_(kFirstId) {
  if (epoll_.fd() < 0 || wake_.fd() < 0) {
    throw InternalError(text("no descriptor for a loop: ", std::strerror(errno)));
  }
  std::uint64_t seed = 0;
  const Nonce nonce = random_nonce();
  std::memcpy(&seed, nonce.data(), sizeof seed);
  random_.seed(seed);
  const auto add = [&](int fd, std::uint64_t tag) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = tag}};
    ::epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, fd, &event);
  };
  add(wake_.fd(), kWakeTag);
  for (const Address& address : options_.listen) {
    listeners_.emplace_back(address, options_.security.kind);
    if (listeners_.back().kind() == TransportKind::kTcp) take_user_key();
    addresses_.push_back(listeners_.back().address());
    add(listeners_.back().fd(), kFirstListenerTag + listeners_.size() - 1);
  }
}

NodeLoop::Impl::~Impl() {
  for (auto& each : look_ups_) each.join();
}

void NodeLoop::Impl::run(Node& node) {
  const std::lock_guard turn(turn_);
  whose_turn_ = std::this_thread::get_id();
  node_ = &node;
  try {
    node.on_start(*this);
    serve_until_stopped();
  } catch (...) {
    end_service();
    whose_turn_ = std::thread::id();
    throw;
  }
  end_service();
  whose_turn_ = std::thread::id();
}

void NodeLoop::Impl::serve_until_stopped() {
  while (true) {
    wait_for_events();
    do_posted();
    fire_timers();
    serve_busy();
    look_at_clocks();
    for (auto& each : std::exchange(later_, {})) each();
    flush_all();
    tell_ended();
    closing_channels_.clear();
    const std::lock_guard lock(mutex_);
    if (std::exchange(stopped_, false)) return;
  }
}

void NodeLoop::Impl::end_service() {
  while (!channels_.empty()) forget(channels_.begin()->first);
  node_ = nullptr;
  if (const auto line = complaints_.take_rest()) report(*line);
  ended_.clear();
  closing_channels_.clear();
  later_.clear();
  unauthenticated_.clear();
  guests_.clear();
  unflushed_.clear();
  busy_.clear();
  unarmed_.clear();
  timers_.clear();
  disk_.reset();
}

int NodeLoop::Impl::timeout_ms() {
  if (!busy_.empty() || !later_.empty() || !unflushed_.empty() || !ended_.empty()) return 0;
  const double wait_s = static_cast<double>(next_clock_ns() - now_ns()) * 1e-9;
  if (wait_s <= 0) return 0;
  return static_cast<int>(std::min(std::ceil(wait_s * 1000), 1e9));
}

std::int64_t NodeLoop::Impl::next_clock_ns() const {
  std::int64_t at_ns = timers_.next_ns().value_or(std::numeric_limits<std::int64_t>::max());
  const bool somebody_is_timed = !channels_.empty() || rests_from_accepting_ || complaints_.due_s();
  if (somebody_is_timed) at_ns = std::min(at_ns, static_cast<std::int64_t>(clock_at_s_ * 1e9));
  return at_ns;
}

bool NodeLoop::Impl::begin_sleep() {
  const std::lock_guard lock(mutex_);
  is_to_be_woken_ = posted_.empty() && !stopped_;
  return is_to_be_woken_;
}

int NodeLoop::Impl::sleep(std::span<epoll_event> events, int wait_ms) {
  sleeps_until_ns_ = next_clock_ns();
  sleeps_ = true;
  whose_turn_ = std::thread::id();
  turn_.unlock();
  const int count = ::epoll_wait(epoll_.fd(), events.data(), static_cast<int>(events.size()), wait_ms);
  turn_.lock();
  whose_turn_ = std::this_thread::get_id();
  sleeps_ = false;
  const std::lock_guard lock(mutex_);
  is_to_be_woken_ = false;
  return count;
}

bool NodeLoop::Impl::run_in_its_sleep(const std::function<void()>& work) {
  if (whose_turn_ == std::this_thread::get_id()) return false;
  const std::unique_lock turn(turn_, std::try_to_lock);
  if (!turn.owns_lock() || !sleeps_ || has_posted_) return false;
  whose_turn_ = std::this_thread::get_id();
  try {
    work();
    flush_all();
  } catch (...) {
    post([error = std::current_exception()] { std::rethrow_exception(error); });
  }
  whose_turn_ = std::thread::id();
  if (timeout_ms() == 0 || next_clock_ns() < sleeps_until_ns_) wake();
  return true;
}

void NodeLoop::Impl::wait_for_events() {
  std::array<epoll_event, kMaxEvents> events;
  int wait_ms = timeout_ms();
  if (wait_ms != 0 && spin()) wait_ms = 0;
  if (wait_ms != 0) {
    for (const ConnectionId id : unarmed_) {
      Channel* channel = find(id);
      if (channel != nullptr && channel->arm()) busy_.insert(id);
    }
    if (!busy_.empty() || !begin_sleep()) wait_ms = 0;
  }
  const int count =
      wait_ms == 0 ? ::epoll_wait(epoll_.fd(), events.data(), kMaxEvents, 0) : sleep(events, wait_ms);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    serve_descriptor(event.data.u64, event.events);
  }
}

bool NodeLoop::Impl::spin() {
  if (spin_s_ <= 0 || now_s() < spins_again_at_s_) return false;
  const long before = num_preemptions();
  const bool saw_something = spin_until(now_s() + next_spin_s_);
  next_spin_s_ = saw_something ? std::min(2 * next_spin_s_, spin_s_)
                               : std::max(next_spin_s_ / 2, std::min(kMinSpin_s, spin_s_));
  if (num_preemptions() != before) {  // another thread needs this core
    spins_again_at_s_ = now_s() + kCrowded_s;
    next_spin_s_ = std::min(kMinSpin_s, spin_s_);
    count("spins given up for another thread");
  }
  return saw_something;
}

bool NodeLoop::Impl::spin_until(double until_s) {
  epoll_event event;
  do {
    for (const ConnectionId id : unarmed_) {
      Channel* channel = find(id);
      if (channel != nullptr && channel->more_input()) busy_.insert(id);
    }
    if (!busy_.empty() || has_posted_ || ::epoll_wait(epoll_.fd(), &event, 1, 0) > 0) return true;
  } while (now_s() < until_s);
  return false;
}

void NodeLoop::Impl::serve_descriptor(std::uint64_t tag, std::uint32_t events) {
  if (tag == kWakeTag) {
    std::uint64_t ignored = 0;
    [[maybe_unused]] const auto got = ::read(wake_.fd(), &ignored, sizeof ignored);
    return;
  }
  if (tag < kFirstId)
    return accept_all(*std::next(listeners_.begin(), static_cast<long>(tag - kFirstListenerTag)));
  const auto found = channels_.find(tag);
  if (found == channels_.end()) return;
  found->second.channel->serve(events);
  const auto still = channels_.find(tag);
  if (still == channels_.end()) return;
  Channel& channel = *still->second.channel;
  if (channel.more_input()) busy_.insert(tag);
  // It has written its quota; the other channels run first.
  if (channel.is_open() && channel.has_output() && !channel.blocked()) unflushed_.insert(tag);
  watch(still->second);
}

void NodeLoop::Impl::serve_busy() {
  for (const ConnectionId id : std::exchange(busy_, {})) {
    Channel* channel = find(id);
    if (channel == nullptr || channel->paused()) continue;
    channel->receive();
    channel = find(id);
    if (channel != nullptr && channel->more_input()) busy_.insert(id);
  }
}

void NodeLoop::Impl::do_posted() {
  std::vector<std::function<void()>> posted;
  {
    const std::lock_guard lock(mutex_);
    posted.swap(posted_);
    has_posted_ = stopped_;
  }
  for (auto& each : posted) each();
}

void NodeLoop::Impl::fire_timers() {
  const std::int64_t now = now_ns();
  while (const auto timer = timers_.take(now)) node_->on_timer(*timer);
}

void NodeLoop::Impl::flush_all() {
  for (const ConnectionId id : std::exchange(unflushed_, {})) {
    const auto found = channels_.find(id);
    if (found == channels_.end()) continue;
    Channel& channel = *found->second.channel;
    channel.flush();
    const auto still = channels_.find(id);
    if (still == channels_.end()) continue;
    watch(still->second);
    if (channel.is_open() && channel.has_output() && !channel.blocked()) unflushed_.insert(id);
  }
}

void NodeLoop::Impl::look_at_clocks() {
  const double now = now_s();
  if (now < clock_at_s_) return;
  std::vector<ConnectionId> ids;
  bool somebody_meets = rests_from_accepting_;
  for (const auto& [id, known] : channels_) {
    ids.push_back(id);
    somebody_meets = somebody_meets || !known.channel->is_open();
  }
  clock_at_s_ = now + (somebody_meets ? kClockEvery_s : kIdleClockEvery_s);
  for (const ConnectionId id : ids) {
    const double guest_s = guests_.contains(id) ? options_.guest_s : kLongestTimeout_s;
    if (Channel* channel = find(id)) channel->look_at_clock(options_.patience_s, guest_s);
  }
  if (const auto line = complaints_.take_count(now)) report(*line);
  if (!std::exchange(rests_from_accepting_, false)) return;
  std::uint64_t tag = kFirstListenerTag;
  for (const Listener& each : listeners_) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = tag++}};
    ::epoll_ctl(epoll_.fd(), EPOLL_CTL_MOD, each.fd(), &event);
  }
}

void NodeLoop::Impl::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = has_posted_ = true;
  if (std::exchange(is_to_be_woken_, false)) wake();
}

void NodeLoop::Impl::post(std::function<void()> work) {
  bool sleeps = false;
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(work));
    has_posted_ = true;
    sleeps = std::exchange(is_to_be_woken_, false);
  }
  if (sleeps) wake();
}

void NodeLoop::Impl::post_or_run(std::function<void()> work) {
  if (!run_in_its_sleep(work)) post(std::move(work));
}

void NodeLoop::Impl::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.fd(), &one, sizeof one);
}

NodeLoop::NodeLoop(NodeLoopOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
NodeLoop::~NodeLoop() = default;
const std::vector<Address>& NodeLoop::addresses() const { return impl_->addresses(); }
void NodeLoop::run(Node& node) { impl_->run(node); }
void NodeLoop::stop() { impl_->stop(); }
void NodeLoop::post(std::function<void()> work) { impl_->post(std::move(work)); }
void NodeLoop::post_or_run(std::function<void()> work) { impl_->post_or_run(std::move(work)); }
ChannelCounts NodeLoop::counts() const { return impl_->counts(); }

}  // namespace trireme::wire
