// Question: what does a channel cost beside a bare loop over a blocking socket, by transport and size, in
// bytes per second one way and in the time of a round trip?
//   bench_wire_channels [--smoke] [--passes P]
// The receiver is a process of its own and answers each message with an empty one; one way keeps several on
// the way, a round trip one. The bare loop sends a header of 16 bytes and the payload with writev, and reads
// it into one buffer that it uses again: no checks, no hash, no priorities. In each pass the ways take turns.
// A line of JSON for each way and size; ratios are medians over the passes.

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/certificates.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/wire/node_loop.h"
#include "trireme/wire/socket.h"

namespace {

using namespace trireme;
using namespace trireme::wire;

/// Ends what another process waits for when this one is gone.
class Child {
 public:
  explicit Child(const std::function<void()>& body) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    ::_exit(0);
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

 private:
  pid_t pid_;
};

struct Case {
  std::size_t bytes;
  int in_flight;
  int messages;
};

/// A way to send: seconds for all messages of a case, from the first's send to the last's answer.
class Way {
 public:
  virtual ~Way() = default;
  virtual double run(const Case& work) = 0;
};

void move_all(int fd, std::byte* at, std::size_t bytes, ssize_t (*move)(int, void*, std::size_t)) {
  while (bytes > 0) {
    const ssize_t moved = move(fd, at, bytes);
    if (moved <= 0) throw CommError("the bare loop has lost its peer");
    at += moved;
    bytes -= static_cast<std::size_t>(moved);
  }
}
ssize_t read_some(int fd, void* at, std::size_t bytes) { return ::read(fd, at, bytes); }
ssize_t write_some(int fd, void* at, std::size_t bytes) { return ::write(fd, at, bytes); }

class BareLoop final : public Way {
 public:
  using Header = std::array<std::uint64_t, 2>;

  explicit BareLoop(bool tcp) {
    std::array<int, 2> ends{};
    if (tcp) {
      const Socket listening = listen_at({"127.0.0.1", 0});
      const auto connected = try_connect(listening.local(), Deadline::after_s(5));
      ends[0] = ::dup(connected->fd());
      ends[1] = ::accept(listening.fd(), nullptr, nullptr);
    } else {
      ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data());
    }
    for (const int fd : ends) {
      ::fcntl(fd, F_SETFL, 0);  // blocking
      const int on = 1;
      if (tcp) ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    peer_ = std::make_unique<Child>([&] { answer(ends[1]); });
    ::close(ends[1]);
    fd_ = ends[0];
  }
  ~BareLoop() override { ::close(fd_); }

  double run(const Case& work) override {
    if (payload_.size() < work.bytes) payload_.assign(work.bytes, std::byte{1});
    const double begin_s = now_s();
    for (int sent = 0, answered = 0; answered < work.messages;) {
      if (sent < work.messages && sent - answered < work.in_flight) {
        Header header = {work.bytes, 0};
        iovec parts[2] = {{header.data(), sizeof header}, {payload_.data(), work.bytes}};
        const ssize_t first = ::writev(fd_, parts, 2);
        if (first < static_cast<ssize_t>(sizeof header)) throw CommError("the bare loop cannot write");
        const auto done = static_cast<std::size_t>(first) - sizeof header;
        move_all(fd_, payload_.data() + done, work.bytes - done, write_some);
        ++sent;
      } else {
        Header answer;
        move_all(fd_, reinterpret_cast<std::byte*>(answer.data()), sizeof answer, read_some);
        ++answered;
      }
    }
    return now_s() - begin_s;
  }

 private:
  static void answer(int fd) {
    std::vector<std::byte> buffer(64 << 20);
    while (true) {
      Header header;
      move_all(fd, reinterpret_cast<std::byte*>(header.data()), sizeof header, read_some);
      move_all(fd, buffer.data(), header[0], read_some);
      move_all(fd, reinterpret_cast<std::byte*>(header.data()), sizeof header, write_some);
    }
  }
  int fd_ = -1;
  std::vector<std::byte> payload_;
  std::unique_ptr<Child> peer_;
};

struct Receiver final : Node {
  Surroundings* around = nullptr;
  void on_start(Surroundings& surroundings) override { around = &surroundings; }
  void on_connected(ConnectionId, const PeerIdentity&) override {}
  void on_message(ConnectionId from, Message) override { around->network().send(from, {.kind = 2}); }
  void on_closed(ConnectionId, CloseCause, const std::string&) override {}
  void on_timer(TimerId) override {}
};

class Sender final : public Node {
 public:
  Sender(NodeLoop& loop, Address to, const Case& work, Buffer body)
      : loop_(loop), to_(std::move(to)), work_(work), body_(std::move(body)) {}
  double seconds() const { return end_s_ - begin_s_; }

 private:
  void on_start(Surroundings& surroundings) override {
    around_ = &surroundings;
    around_->network().connect(to_);
  }
  void on_connected(ConnectionId peer, const PeerIdentity&) override {
    begin_s_ = now_s();
    for (; sent_ < std::min(work_.in_flight, work_.messages); ++sent_) send(peer);
  }
  void on_message(ConnectionId peer, Message) override {
    if (sent_ < work_.messages) {
      ++sent_;
      send(peer);
    }
    if (++answered_ < work_.messages) return;
    end_s_ = now_s();
    loop_.stop();
  }
  void on_closed(ConnectionId, CloseCause, const std::string& reason) override { throw CommError(reason); }
  void on_timer(TimerId) override {}
  void send(ConnectionId peer) { around_->network().send(peer, {.kind = 1, .body = body_}); }

  NodeLoop& loop_;
  const Address to_;
  const Case work_;
  const Buffer body_;
  Surroundings* around_ = nullptr;
  int sent_ = 0, answered_ = 0;
  double begin_s_ = 0, end_s_ = 0;
};

class Channels final : public Way {
 public:
  Channels(const NodeLoopOptions& options, const Address& address) : options_(options) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) throw CommError("no pipe");
    peer_ = std::make_unique<Child>([&] {
      NodeLoopOptions serving = options;
      serving.listen = {address};
      NodeLoop loop(serving);
      const Address& where = loop.addresses().front();
      if (::write(ends[1], where.data(), where.size()) < 0) return;
      ::close(ends[1]);
      Receiver receiver;
      loop.run(receiver);
    });
    ::close(ends[1]);
    std::array<char, 256> where;
    const ssize_t got = ::read(ends[0], where.data(), where.size());
    ::close(ends[0]);
    if (got <= 0) throw CommError("the receiver has not begun");
    address_.assign(where.data(), static_cast<std::size_t>(got));
  }
  double run(const Case& work) override {
    if (body_.size() != work.bytes) body_ = Buffer::of(std::vector<std::byte>(work.bytes, std::byte{1}));
    NodeLoop loop(options_);
    Sender sender(loop, address_, work, body_);
    loop.run(sender);
    return sender.seconds();
  }

 private:
  const NodeLoopOptions options_;
  Address address_;
  Buffer body_;
  std::unique_ptr<Child> peer_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

nlohmann::json spread(const std::vector<double>& values) {
  return {{"median", median(values)}, {"min", std::ranges::min(values)}, {"max", std::ranges::max(values)}};
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("What a channel costs beside a bare socket.");
  int passes = 7;
  bool smoke = false;
  double spin_us = -1;
  app.add_option("--passes", passes)->check(CLI::PositiveNumber);
  app.add_option("--spin-us", spin_us, "how long loops spin before they sleep");
  app.add_flag("--smoke", smoke);
  CLI11_PARSE(app, argc, argv);

  const auto folder =
      std::filesystem::temp_directory_path() / ("trireme-bench-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  test::Authority authority("bench", folder);
  NodeLoopOptions plain, tls, memory;
  plain.spin_s = spin_us < 0 ? -1 : spin_us * 1e-6;
  plain.shared_memory = SharedMemoryUse::kNever;
  tls = memory = plain;
  tls.security = Security::with_tls(authority.issue("both", "DNS:worker.1"));
  memory.shared_memory = SharedMemoryUse::kWherePossible;

  std::vector<Case> cases = {
      {4 << 10, 64, 40000}, {256 << 10, 16, 4000}, {4 << 20, 8, 256}, {64 << 20, 2, 16}};
  std::vector<int> round_trips = {4000, 2000, 100, 8};
  if (smoke) {
    passes = 1;
    cases = {{4 << 10, 8, 20}, {4 << 20, 2, 3}};
    round_trips = {5, 2};
  }
  {
    std::map<std::string, std::unique_ptr<Way>> ways;
    ways["bare tcp"] = std::make_unique<BareLoop>(true);
    ways["bare unix"] = std::make_unique<BareLoop>(false);
    ways["tcp"] = std::make_unique<Channels>(plain, "tcp:127.0.0.1:0");
    ways["tls"] = std::make_unique<Channels>(tls, "tcp:127.0.0.1:0");
    ways["unix"] = std::make_unique<Channels>(plain, "unix:" + (folder / "unix").string());
    ways["shm"] = std::make_unique<Channels>(memory, "unix:" + (folder / "shm").string());
    const std::map<std::string, std::string> bare_of = {
        {"tcp", "bare tcp"}, {"tls", "bare tcp"}, {"unix", "bare unix"}, {"shm", "bare unix"}};
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const Case& one_way = cases[i];
      const Case round_trip{one_way.bytes, 1, round_trips[i]};
      std::map<std::string, std::vector<double>> gb_per_s, rtt_us;
      for (int pass = -1; pass < passes; ++pass) {
        for (auto& [name, way] : ways) {
          const double one_way_s = way->run(one_way), round_trips_s = way->run(round_trip);
          if (pass < 0 && !smoke) continue;  // warm-up
          gb_per_s[name].push_back(1e-9 * static_cast<double>(one_way.bytes) * one_way.messages / one_way_s);
          rtt_us[name].push_back(1e6 * round_trips_s / round_trip.messages);
        }
      }
      for (const auto& [name, bare] : bare_of) {
        std::vector<double> ratios, rtt_ratios;
        for (std::size_t pass = 0; pass < gb_per_s[name].size(); ++pass) {
          ratios.push_back(gb_per_s[name][pass] / gb_per_s[bare][pass]);
          rtt_ratios.push_back(rtt_us[name][pass] / rtt_us[bare][pass]);
        }
        std::cout << nlohmann::json{{"way", name},
                                    {"bytes", one_way.bytes},
                                    {"in_flight", one_way.in_flight},
                                    {"gb_per_s", spread(gb_per_s[name])},
                                    {"bare_gb_per_s", spread(gb_per_s[bare])},
                                    {"ratio", spread(ratios)},
                                    {"rtt_us", spread(rtt_us[name])},
                                    {"bare_rtt_us", spread(rtt_us[bare])},
                                    {"rtt_ratio", spread(rtt_ratios)}}
                         .dump()
                  << std::endl;
      }
    }
  }
  std::filesystem::remove_all(folder);
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << std::endl;
  return kExitComm;
}
