// What a parameter server costs beside a channel that only takes the bytes: pushes from one worker to one
// server that adds them up, in processes of their own, over TCP, a Unix socket and shared memory.
// One line of JSON for each way and size. With a codec, pushes are encoded, rates are those of the f32
// values, and the first line says what encoding and decoding a chunk cost.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/compress/codec.h"
#include "trireme/ps/client.h"
#include "trireme/ps/coordinator.h"
#include "trireme/ps/internal/float_bytes.h"
#include "trireme/ps/server.h"
#include "trireme/wire/node_loop.h"

namespace {

using namespace trireme;
using wire::Address;

struct Case {
  std::uint32_t bytes;
  int pushes, in_flight;
};

class Child {
 public:
  template <class Work>
  explicit Child(const Work& work) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      work();
    } catch (const std::exception& error) {
      std::cerr << error.what() << std::endl;
    }
    ::_exit(1);
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

/// Answers every message and does nothing else: what the server's loop would take without a server.
struct Sink final : wire::Node {
  wire::Surroundings* around = nullptr;
  void on_start(wire::Surroundings& surroundings) override { around = &surroundings; }
  void on_connected(wire::ConnectionId, const wire::PeerIdentity&) override {}
  void on_message(wire::ConnectionId from, wire::Message) override { around->network().send(from, {}); }
  void on_closed(wire::ConnectionId, wire::CloseCause, const std::string&) override {}
  void on_timer(wire::TimerId) override {}
};

class ToSink final : public wire::Node {
 public:
  ToSink(wire::NodeLoop& loop, Address to, const Case& work, wire::Buffer body)
      : loop_(loop), to_(std::move(to)), work_(work), body_(std::move(body)) {}
  double seconds() const { return end_s_ - begin_s_; }

 private:
  void on_start(wire::Surroundings& surroundings) override {
    around_ = &surroundings;
    around_->network().connect(to_);
  }
  void on_connected(wire::ConnectionId peer, const wire::PeerIdentity&) override {
    begin_s_ = now_s();
    for (int i = 0; i < work_.in_flight; ++i) send(peer);
  }
  void on_message(wire::ConnectionId peer, wire::Message) override {
    if (sent_ < work_.pushes) send(peer);
    if (++answered_ < work_.pushes) return;
    end_s_ = now_s();
    loop_.stop();
  }
  void on_closed(wire::ConnectionId, wire::CloseCause, const std::string&) override {
    around_->start_timer(0.02);  // it is not there yet
  }
  void on_timer(wire::TimerId) override { around_->network().connect(to_); }
  void send(wire::ConnectionId peer) {
    ++sent_;
    around_->network().send(peer, {.kind = 1, .body = body_});
  }

  wire::NodeLoop& loop_;
  const Address to_;
  const Case work_;
  const wire::Buffer body_;
  wire::Surroundings* around_ = nullptr;
  int sent_ = 0, answered_ = 0;
  double begin_s_ = 0, end_s_ = 0;
};

/// Seconds of so many pushes of a whole table by a worker that keeps some under way.
double push(ps::Client& client, ps::TableId table, const Case& work, const wire::Buffer& body) {
  std::deque<ps::Pending> under_way;
  const double begin_s = now_s();
  for (int i = 0; i < work.pushes; ++i) {
    if (under_way.size() == static_cast<std::size_t>(work.in_flight)) {
      under_way.front().get();
      under_way.pop_front();
    }
    under_way.push_back(client.push(table, body));
  }
  for (const ps::Pending& pending : under_way) pending.get();
  return now_s() - begin_s;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

nlohmann::json spread(const std::vector<double>& values) {
  return {{"median", median(values)}, {"min", std::ranges::min(values)}, {"max", std::ranges::max(values)}};
}

template <class Work>
nlohmann::json rate_of(double gigabytes, const Work& work) {
  std::vector<double> rates;
  for (int i = 0; i < 101; ++i) {
    const double begin_s = now_s();
    work();
    rates.push_back(gigabytes / (now_s() - begin_s));
  }
  return spread(rates);
}

/// Of a chunk as large as they get, in the cache of one core.
nlohmann::json cost_of(const std::string& name, const compress::Codec& codec) {
  Random random(1);
  std::vector<float> values(256 << 10), pending(values.size()), sum(values.size());
  for (float& value : values) value = (random.uniform() - 0.5F) * (random.uniform() - 0.5F);
  const double gigabytes = 1e-9 * static_cast<double>(values.size() * sizeof(float));
  compress::Codec::Options options{.threshold = 0.24F};  // few reach it
  std::vector<std::byte> room(codec.most_bytes(values.size(), options));
  std::span<const std::byte> encoded;
  const auto encode_all = [&](std::span<const float> from) {
    encoded = std::span(room).first(codec.encode(from, options, room));
  };
  const auto encode = [&] {
    ++options.seed;
    if (!codec.leaves_out()) {
      encode_all(values);
      return;
    }
    std::ranges::transform(pending, values, pending.begin(), std::plus<>());
    encode_all(pending);
    codec.take_out(encoded, pending);
  };
  nlohmann::json cost = {{"codec", name}, {"encode_gb_per_s", rate_of(gigabytes, encode)}};
  cost["share_of_bytes"] = 1e-9 * static_cast<double>(encoded.size()) / gigabytes;
  cost["decode_gb_per_s"] = rate_of(gigabytes, [&] { codec.decode(encoded, sum); });
  cost["add_gb_per_s"] = rate_of(gigabytes, [&] { codec.add(encoded, sum); });
  return cost;
}

wire::NodeLoopOptions loop_options(const std::string& role, const Address& at, wire::SharedMemoryUse memory) {
  wire::NodeLoopOptions options;
  options.self = {.role = role, .name = role};
  options.shared_memory = memory;
  if (!at.empty()) options.listen = {at};
  return options;
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("What pushes to a parameter server cost beside a loop that only takes them.");
  int passes = 5, owner_threads = 1, first_port = 20000 + ::getpid() % 10000;
  bool smoke = false;
  std::string codec = "none";
  app.add_option("--codec", codec, "Of pushes: " + join(compress::codec_names()));
  app.add_option("--passes", passes)->check(CLI::PositiveNumber);
  app.add_option("--owner-threads", owner_threads)->check(CLI::NonNegativeNumber);
  app.add_option("--port", first_port, "of the first server that listens on TCP");
  app.add_flag("--smoke", smoke);
  CLI11_PARSE(app, argc, argv);
  if (const compress::Codec* encoding = compress::codec(codec))
    std::cout << cost_of(codec, *encoding).dump() << std::endl;

  const auto folder =
      std::filesystem::temp_directory_path() / ("trireme-bench-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  std::vector<Case> cases = {{4 << 10, 20000, 64}, {256 << 10, 2000, 16}, {4 << 20, 200, 4}};
  if (smoke) {
    passes = 1;
    cases = {{4 << 10, 20, 4}, {4 << 20, 4, 2}};
  }
  int port = first_port;
  for (const std::string way : {"tcp", "unix", "shm"}) {
    const auto memory = way == "shm" ? wire::SharedMemoryUse::kWherePossible : wire::SharedMemoryUse::kNever;
    const auto at = [&](const std::string& who) {
      return way == "tcp" ? "tcp:127.0.0.1:" + std::to_string(port++)
                          : "unix:" + (folder / (way + "-" + who)).string();
    };
    const Address coordinator = at("coordinator"), server = at("server"), sink = at("sink");
    const Child coordinates([&] {
      auto options = loop_options("coordinator", coordinator, memory);
      options.folder = (folder / (way + "-log")).string();
      wire::NodeLoop loop(options);
      ps::CoordinatorOptions alone;
      alone.num_replicas = 1;
      ps::Coordinator node(alone);
      loop.run(node);
    });
    const Child serves([&] {
      wire::NodeLoop loop(loop_options("server", server, memory));
      ps::ServerOptions options;
      options.name = options.host = "server";
      options.address = server;
      options.coordinator = coordinator;
      options.owner_threads = owner_threads;
      ps::Server node(options);
      loop.run(node);
    });
    const Child sinks([&] {
      wire::NodeLoop loop(loop_options("sink", sink, memory));
      Sink node;
      loop.run(node);
    });
    ps::Client client({.worker = 0, .host = "worker", .coordinator = coordinator},
                      loop_options("worker", {}, memory));
    for (const Case& work : cases) {
      std::vector<float> values(work.bytes / sizeof(float));
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 251) - 125;
      const wire::Buffer body = ps::in_buffer(std::move(values));
      ps::TableSpec spec;
      spec.name = "table" + std::to_string(work.bytes);
      spec.num_elements = work.bytes / sizeof(float);
      spec.staleness = ps::kAsynchronous;
      spec.compression.push = codec;
      spec.compression.threshold = 120;  // few reach it
      const ps::TableId table = client.open_table(spec);
      std::vector<double> pushed, taken, ratio;
      for (int pass = -1; pass < passes; ++pass) {
        const double bytes = 1e-9 * work.bytes * work.pushes;
        const double push_gb_per_s = bytes / push(client, table, work, body);
        wire::NodeLoop loop(loop_options("worker", {}, memory));
        ToSink to_sink(loop, sink, work, body);
        loop.run(to_sink);
        if (pass < 0 && !smoke) continue;  // warm-up
        pushed.push_back(push_gb_per_s);
        taken.push_back(bytes / to_sink.seconds());
        ratio.push_back(pushed.back() / taken.back());
      }
      std::cout << nlohmann::json{{"way", way},
                                  {"codec", codec},
                                  {"bytes", work.bytes},
                                  {"in_flight", work.in_flight},
                                  {"owner_threads", owner_threads},
                                  {"push_gb_per_s", spread(pushed)},
                                  {"channel_gb_per_s", spread(taken)},
                                  {"ratio", spread(ratio)}}
                       .dump()
                << std::endl;
    }
  }
  std::filesystem::remove_all(folder);
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << std::endl;
  return 1;
}
