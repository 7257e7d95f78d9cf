// Question: what does a channel cost compared with a bare loop over a blocking socket, by transport and size?
// Measured are bytes per second in one direction, and the time of a round trip.
//   bench_wire_channels [--smoke] [--passes P]
// The receiver is a separate process and answers each message with an empty one. One direction keeps several
// messages pending, a round trip one. The bare loop sends a header of 16 bytes and the payload with writev,
// and reads it into one reused buffer: no checks, no hash, no priorities. In each pass the variants take
// turns. A line of JSON for each way and size; ratios are medians over the passes.

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

#include "bench/bare_loop.h"
#include "bench/spread.h"
#include "tests/support/certificates.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/wire/node_loop.h"

namespace {

using namespace trireme;
using namespace trireme::wire;

struct Case {
  std::size_t bytes;
  int in_flight;
  int messages;
};

/// A transport. Returns seconds for all messages of a case, from the first send to the last answer.
class Way {
 public:
  virtual ~Way() = default;
  virtual double run(const Case& work) = 0;
};

class Bare final : public Way {
 public:
  explicit Bare(bool tcp) : loop_(tcp) {}
  double run(const Case& work) override {
    return loop_.run({.bytes_there = work.bytes, .messages = work.messages, .in_flight = work.in_flight});
  }

 private:
  bench::BareLoop loop_;
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
    peer_ = std::make_unique<bench::Child>([&] {
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
  std::unique_ptr<bench::Child> peer_;
};

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
  NodeLoopOptions plain, tls, encrypted, memory;
  plain.spin_s = spin_us < 0 ? -1 : spin_us * 1e-6;
  plain.shared_memory = SharedMemoryUse::kNever;
  tls = encrypted = memory = plain;
  tls.security = Security::with_tls(authority.issue("both", "DNS:worker.1"));
  encrypted.security = Security::with_secret(Secret::random(), true);
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
    ways["bare tcp"] = std::make_unique<Bare>(true);
    ways["bare unix"] = std::make_unique<Bare>(false);
    ways["tcp"] = std::make_unique<Channels>(plain, "tcp:127.0.0.1:0");
    ways["tls"] = std::make_unique<Channels>(tls, "tcp:127.0.0.1:0");
    ways["encrypted"] = std::make_unique<Channels>(encrypted, "tcp:127.0.0.1:0");
    ways["unix"] = std::make_unique<Channels>(plain, "unix:" + (folder / "unix").string());
    ways["shm"] = std::make_unique<Channels>(memory, "unix:" + (folder / "shm").string());
    const std::map<std::string, std::string> bare_of = {{"tcp", "bare tcp"},
                                                        {"tls", "bare tcp"},
                                                        {"encrypted", "bare tcp"},
                                                        {"unix", "bare unix"},
                                                        {"shm", "bare unix"}};
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
                                    {"gb_per_s", bench::spread(gb_per_s[name])},
                                    {"bare_gb_per_s", bench::spread(gb_per_s[bare])},
                                    {"ratio", bench::spread(ratios)},
                                    {"rtt_us", bench::spread(rtt_us[name])},
                                    {"bare_rtt_us", bench::spread(rtt_us[bare])},
                                    {"rtt_ratio", bench::spread(rtt_ratios)}}
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
