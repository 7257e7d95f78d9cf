#include "tests/support/delayed_switch.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <queue>
#include <stdexcept>

#include "tests/support/child_process.h"
#include "trireme/base/clock.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

constexpr const char* kInterface = "cable";
constexpr std::size_t kMostBytes = 1 << 16;
// Frames that are due within a tick arrive together. A wake-up for each frame would cost half a core.
constexpr double kTick_s = 0.25e-3;
// A host that sends continuously does not block the frames of other hosts.
constexpr int kFramesInTurn = 64;
constexpr unsigned char kStation[] = {0x02, 0, 0, 0, 0x01};  // followed by the number of the host

void require(bool done, const std::string& what) {
  if (!done) throw std::runtime_error(text("no switch: ", what, ": ", std::strerror(errno)));
}

/// Opens the TAP device of that name in the namespace. A device is created in the namespace of the opening
/// thread.
int open_tap(const std::string& network) {
  int tap = -1;
  std::string problem;
  std::thread([&] {
    try {
      const int there = ::open(("/run/netns/" + network).c_str(), O_RDONLY | O_CLOEXEC);
      require(there >= 0, "a network namespace");
      const int entered = ::setns(there, CLONE_NEWNET);
      ::close(there);
      require(entered == 0, "a network namespace");
      tap = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
      require(tap >= 0, "/dev/net/tun");
      ifreq request{};
      std::strncpy(request.ifr_name, kInterface, IFNAMSIZ - 1);
      request.ifr_flags = IFF_TAP | IFF_NO_PI;
      require(::ioctl(tap, TUNSETIFF, &request) == 0, "a TAP device");
    } catch (const std::runtime_error& error) {
      problem = error.what();
    }
  }).join();
  if (!problem.empty()) {
    if (tap >= 0) ::close(tap);
    throw std::runtime_error(problem);
  }
  return tap;
}

/// One direction of a cable. Frames leave in sequence.
class Lane {
 public:
  /// Returns the time at which the last bit of the frame has entered the cable. Negative if the frame would
  /// wait for too long.
  double pass(double at_s, std::size_t bytes, const SwitchOptions& options) {
    if (options.bits_per_s <= 0) return at_s;
    const double begins_s = std::max(at_s, free_s_);
    if (begins_s - at_s > options.queue_s) return -1;
    free_s_ = begins_s + static_cast<double>(bytes) * 8 / options.bits_per_s;
    return free_s_;
  }

 private:
  double free_s_ = 0;
};

/// A frame in flight. It first goes to the switch, and from there into the cable of its receiver.
struct Frame {
  double due_s = 0;
  std::uint64_t number = 0;
  int to = 0;
  bool in_last_cable = false;
  std::vector<char> bytes;
};
struct Later {
  bool operator()(const Frame& a, const Frame& b) const {
    return a.due_s != b.due_s ? a.due_s > b.due_s : a.number > b.number;
  }
};

class Traffic {
 public:
  Traffic(const SwitchOptions& options, const std::vector<int>& taps,
          const std::vector<std::atomic<bool>>& cut)
      : options_(options), taps_(taps), cut_(cut), up_(taps.size()), down_(taps.size()) {}

  void take_from(int host);
  /// Delivers the frames that are due. Returns the time of the next frame, or 0.
  double deliver();

 private:
  bool is_cut(int host) const { return cut_[static_cast<std::size_t>(host)].load(); }
  void send_on(int from, const char* bytes, std::size_t size);

  const SwitchOptions& options_;
  const std::vector<int>& taps_;
  const std::vector<std::atomic<bool>>& cut_;
  std::vector<Lane> up_, down_;
  std::priority_queue<Frame, std::vector<Frame>, Later> frames_;
  std::uint64_t num_frames_ = 0;
  std::vector<char> buffer_ = std::vector<char>(kMostBytes);
};

void Traffic::take_from(int host) {
  for (int i = 0; i < kFramesInTurn; ++i) {
    const ssize_t size = ::read(taps_[static_cast<std::size_t>(host)], buffer_.data(), buffer_.size());
    if (size <= 0) return;
    if (static_cast<std::size_t>(size) > sizeof kStation && !is_cut(host))
      send_on(host, buffer_.data(), static_cast<std::size_t>(size));
  }
}

void Traffic::send_on(int from, const char* bytes, std::size_t size) {
  const double there_s = up_[static_cast<std::size_t>(from)].pass(now_s(), size, options_);
  if (there_s < 0) return;
  const bool to_all = (bytes[0] & 1) != 0;
  const int station =
      std::memcmp(bytes, kStation, sizeof kStation) == 0 ? static_cast<unsigned char>(bytes[5]) : -1;
  for (int to = 0; to < options_.num_hosts; ++to) {
    if (to == from || (!to_all && to != station)) continue;
    frames_.push({.due_s = there_s + options_.delay_s,
                  .number = num_frames_++,
                  .to = to,
                  .bytes = std::vector<char>(bytes, bytes + size)});
  }
}

double Traffic::deliver() {
  while (!frames_.empty() && frames_.top().due_s <= now_s()) {
    // The order of the queue does not depend on the bytes.
    Frame frame = std::move(const_cast<Frame&>(frames_.top()));
    frames_.pop();
    const auto to = static_cast<std::size_t>(frame.to);
    if (!frame.in_last_cable) {
      // Bits are forwarded as they arrive. So the second cable does not delay a single frame.
      const double size_s =
          options_.bits_per_s > 0 ? static_cast<double>(frame.bytes.size()) * 8 / options_.bits_per_s : 0;
      frame.due_s = down_[to].pass(frame.due_s - size_s, frame.bytes.size(), options_);
      frame.in_last_cable = true;
      if (frame.due_s >= 0) frames_.push(std::move(frame));
      continue;
    }
    // Frames that the host cannot accept are lost, as on a cable.
    if (!is_cut(frame.to)) [[maybe_unused]]
      const auto sent = ::write(taps_[to], frame.bytes.data(), frame.bytes.size());
  }
  return frames_.empty() ? 0 : frames_.top().due_s;
}

void wake_at(int timer, double at_s) {
  itimerspec when{};
  when.it_value.tv_sec = static_cast<time_t>(at_s);
  when.it_value.tv_nsec = static_cast<long>((at_s - static_cast<double>(when.it_value.tv_sec)) * 1e9);
  ::timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, nullptr);
}

void add(int epoll, int fd, int number) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = number}};
  require(::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll");
}

}  // namespace

DelayedSwitch::DelayedSwitch(SwitchOptions options)
    : options_(std::move(options)), cut_(static_cast<std::size_t>(options_.num_hosts)) {
  try {
    create();
  } catch (...) {
    remove();
    throw;
  }
  thread_ = std::thread([this] { carry(); });
  pthread_setname_np(thread_.native_handle(), "delayed-switch");
}

DelayedSwitch::~DelayedSwitch() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(stops_, &one, sizeof one);
  thread_.join();
  remove();
}

std::string DelayedSwitch::host_name(int host) const { return text(options_.name, "-", host); }

std::string DelayedSwitch::address(int host) { return text("10.79.0.", host + 1); }

void DelayedSwitch::cut_cable(int host) { cut_.at(static_cast<std::size_t>(host)) = true; }

void DelayedSwitch::create() {
  stops_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  require(stops_ >= 0, "eventfd");
  const auto do_command = [](const std::string& command) {
    const auto result = test::run(split(command, ' '), {}, 20);
    if (result.exit_code != 0) throw std::runtime_error(text("no switch: '", command, "': ", result.err));
  };
  for (int host = 0; host < options_.num_hosts; ++host) {
    do_command(text("ip netns add ", host_name(host)));
    num_created_ = host + 1;
    taps_.push_back(open_tap(host_name(host)));
    const std::string ip = text("ip -n ", host_name(host));
    char station[18];
    std::snprintf(station, sizeof station, "02:00:00:00:01:%02x", static_cast<unsigned>(host) & 0xff);
    do_command(text(ip, " link set lo up"));
    do_command(text(ip, " link set ", kInterface, " mtu ", options_.mtu, " address ", station));
    do_command(text(ip, " addr add ", address(host), "/24 dev ", kInterface));
    do_command(text(ip, " link set ", kInterface, " up"));
  }
}

void DelayedSwitch::remove() const {
  for (const int tap : taps_) ::close(tap);
  for (int host = 0; host < num_created_; ++host) test::run({"ip", "netns", "del", host_name(host)});
  if (stops_ >= 0) ::close(stops_);
}

void DelayedSwitch::carry() const {
  ::prctl(PR_SET_TIMERSLACK, 1);
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  const int timer = ::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  const int is_timer = options_.num_hosts, is_stop = options_.num_hosts + 1;
  for (int host = 0; host < options_.num_hosts; ++host)
    add(epoll, taps_[static_cast<std::size_t>(host)], host);
  add(epoll, timer, is_timer);
  add(epoll, stops_, is_stop);
  Traffic traffic(options_, taps_, cut_);
  double next_s = 0;
  for (bool stop = false; !stop;) {
    epoll_event events[16];
    const int ready = ::epoll_wait(epoll, events, 16, -1);
    for (int i = 0; i < ready; ++i) {
      const int number = events[i].data.fd;
      std::uint64_t times = 0;
      if (number < options_.num_hosts) traffic.take_from(number);
      if (number == is_timer) {
        next_s = 0;
        [[maybe_unused]] const auto read = ::read(timer, &times, sizeof times);
      }
      stop = stop || number == is_stop;
    }
    const double due_s = std::ceil(traffic.deliver() / kTick_s) * kTick_s;
    if (due_s > 0 && due_s != next_s) wake_at(timer, next_s = due_s);
  }
  ::close(timer);
  ::close(epoll);
}

}  // namespace trireme::test
