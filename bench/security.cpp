// Question: what does authentication cost when connections are made over loopback, by method?
//   bench_security [--smoke] [--connections N] [--passes P]
// A process listens. Another connects N times in sequence, each time until both are authenticated. In each
// pass the methods take turns. A line of JSON for each; ratios to a channel without authentication are
// medians over the passes. Connections to the store are always authenticated, so it has a connection and a
// call of 64 bytes.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <filesystem>
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
#include "trireme/wire/store_client.h"
#include "trireme/wire/store_server.h"

namespace {

using namespace trireme;
using namespace trireme::wire;

constexpr double kWait_s = 30;  // ends a run that hangs

struct Listening final : Node {
  void on_start(Surroundings&) override {}
  void on_connected(ConnectionId, const PeerIdentity&) override {}
  void on_message(ConnectionId, Message) override {}
  void on_closed(ConnectionId, CloseCause, const std::string&) override {}
  void on_timer(TimerId) override {}
};

class Connecting final : public Node {
 public:
  Connecting(NodeLoop& loop, Address to, int connections)
      : loop_(loop), to_(std::move(to)), left_(connections) {}
  double seconds() const { return end_s_ - begin_s_; }

 private:
  void on_start(Surroundings& surroundings) override {
    around_ = &surroundings;
    begin_s_ = now_s();
    around_->network().connect(to_);
  }
  void on_connected(ConnectionId peer, const PeerIdentity&) override {
    around_->network().close(peer);
    if (--left_ > 0) {
      around_->network().connect(to_);
      return;
    }
    end_s_ = now_s();
    loop_.stop();
  }
  void on_message(ConnectionId, Message) override {}
  void on_closed(ConnectionId, CloseCause, const std::string& reason) override { throw CommError(reason); }
  void on_timer(TimerId) override {}

  NodeLoop& loop_;
  const Address to_;
  int left_;
  Surroundings* around_ = nullptr;
  double begin_s_ = 0, end_s_ = 0;
};

/// A process that listens with one method, and the options of a peer.
class Way {
 public:
  Way(const Security& of_listener, const Security& of_peer, const Address& address) {
    of_peer_.security = of_peer;
    of_peer_.self = {.role = "worker", .name = "1"};
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) throw CommError("no pipe");
    peer_ = std::make_unique<bench::Child>([&] {
      NodeLoopOptions serving;
      serving.security = of_listener;
      serving.self = {.role = "server", .name = "1"};
      serving.listen = {address};
      NodeLoop loop(serving);
      const Address& where = loop.addresses().front();
      if (::write(ends[1], where.data(), where.size()) < 0) return;
      ::close(ends[1]);
      Listening listening;
      loop.run(listening);
    });
    ::close(ends[1]);
    std::array<char, 256> where;
    const ssize_t got = ::read(ends[0], where.data(), where.size());
    ::close(ends[0]);
    if (got <= 0) throw CommError("the listener has not begun");
    address_.assign(where.data(), static_cast<std::size_t>(got));
  }
  double run(int connections) const {
    NodeLoop loop(of_peer_);
    Connecting connecting(loop, address_, connections);
    loop.run(connecting);
    return connecting.seconds();
  }

 private:
  NodeLoopOptions of_peer_;
  Address address_;
  std::unique_ptr<bench::Child> peer_;
};

void measure_store(const Secret& secret, int connections, int passes) {
  StoreServer server(listen_at({"127.0.0.1", 0}), StoreServerOptions{.secret = secret});
  const StoreClientOptions options{.endpoint = server.endpoint(), .secret = secret};
  StoreClient client(options);
  client.set("key", std::string(64, 'v'), kWait_s);
  std::vector<double> connect_us, call_us;
  for (int pass = 0; pass < passes; ++pass) {
    double begin_s = now_s();
    for (int i = 0; i < connections; ++i) StoreClient each(options);
    connect_us.push_back(1e6 * (now_s() - begin_s) / connections);
    begin_s = now_s();
    for (int i = 0; i < connections; ++i) client.get("key", kWait_s);
    call_us.push_back(1e6 * (now_s() - begin_s) / connections);
  }
  std::cout << nlohmann::json{{"way", "store"},
                              {"connect_us", bench::spread(connect_us)},
                              {"call_us", bench::spread(call_us)}}
                   .dump()
            << std::endl;
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("What proofs of peers cost where connections are made.");
  int connections = 1000, passes = 7;
  bool smoke = false;
  app.add_option("--connections", connections)->check(CLI::PositiveNumber);
  app.add_option("--passes", passes)->check(CLI::PositiveNumber);
  app.add_flag("--smoke", smoke);
  CLI11_PARSE(app, argc, argv);
  if (smoke) connections = 5, passes = 1;

  const auto folder =
      std::filesystem::temp_directory_path() / ("trireme-bench-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  test::Authority authority("bench", folder);
  const Secret secret = Secret::random();
  const auto with = [&](bool encrypted) { return Security::with_secret(secret, encrypted); };
  const auto certificate = Security::with_tls(authority.issue("both", "DNS:worker.1"));
  const Address tcp = "tcp:127.0.0.1:0";
  {
    std::map<std::string, std::unique_ptr<Way>> ways;
    ways["none"] = std::make_unique<Way>(Security::none(), Security::none(), tcp);
    ways["user key"] = std::make_unique<Way>(Security{}, Security{}, tcp);
    ways["secret"] = std::make_unique<Way>(with(false), with(false), tcp);
    ways["key of a role"] =
        std::make_unique<Way>(with(false), Security::with_secret(secret.of_role("worker.1")), tcp);
    ways["encrypted"] = std::make_unique<Way>(with(true), with(true), tcp);
    ways["certificates"] = std::make_unique<Way>(certificate, certificate, tcp);
    ways["unix"] = std::make_unique<Way>(Security{}, Security{}, "unix:" + (folder / "socket").string());
    std::map<std::string, std::vector<double>> us;
    for (int pass = -1; pass < passes; ++pass) {
      for (const auto& [name, way] : ways) {
        const double seconds = way->run(connections);
        if (pass >= 0) us[name].push_back(1e6 * seconds / connections);
      }
    }
    for (const auto& [name, each] : us) {
      std::cout << nlohmann::json{{"way", name},
                                  {"connect_us", bench::spread(each)},
                                  {"ratio", bench::ratio(each, us["none"])}}
                       .dump()
                << std::endl;
    }
  }
  measure_store(secret, connections, passes);
  std::filesystem::remove_all(folder);
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << std::endl;
  return kExitComm;
}
