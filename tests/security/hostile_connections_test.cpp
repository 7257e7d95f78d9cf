// Two thousand connections that send nothing, a part of a message, or garbage, at each port that a job opens.
// None of them uses memory after it has ended. Legitimate peers are served as before.

#include <gmock/gmock.h>
#include <sys/socket.h>

#include <fstream>
#include <functional>
#include <memory>

#include "tests/unit/wire/channel_party.h"
#include "trireme/http/http_server.h"
#include "trireme/topology/internal/introduction.h"
#include "trireme/wire/internal/store_protocol.h"
#include "trireme/wire/store_client.h"
#include "trireme/wire/store_server.h"

namespace trireme::wire {
namespace {

constexpr double kWait_s = 60;  // ends a test that would hang
constexpr int kWaves = 20, kInAWave = 100;
constexpr std::int64_t kMaxGrowth_kib = 8 << 10;

const Secret& secret() {
  static const Secret kSecret = Secret::from_text("the secret of this job", "the test");
  return kSecret;
}

/// A listening port, and a check that a peer with the secret is served there.
struct Port {
  std::string name;
  std::function<Endpoint()> open;
  std::function<void()> expect_service;
  std::function<void()> close;
};

Port store() {
  auto server = std::make_shared<std::unique_ptr<StoreServer>>();
  return {.name = "Store",
          .open =
              [=] {
                *server = std::make_unique<StoreServer>(listen_at({"127.0.0.1", 0}),
                                                        StoreServerOptions{.secret = secret()});
                return (*server)->endpoint();
              },
          .expect_service =
              [=] {
                StoreClient client({(*server)->endpoint(), secret(), kWait_s});
                client.set("key", "value", kWait_s);
                EXPECT_EQ(client.get("key", kWait_s), "value");
              },
          .close = [=] { server->reset(); }};
}

Port channels() {
  auto server = std::make_shared<std::unique_ptr<Party>>();
  const auto options = [] {
    NodeLoopOptions result;
    result.security = Security::with_secret(secret());
    result.self = {.role = "server", .name = "7"};
    return result;
  };
  return {.name = "Channels",
          .open =
              [=] {
                NodeLoopOptions listening = options();
                listening.listen = {"tcp:127.0.0.1:0"};
                *server = std::make_unique<Party>(std::move(listening));
                return Endpoint::parse((*server)->address().substr(4), "the address");
              },
          .expect_service =
              [=] {
                NodeLoopOptions joining = options();
                joining.self = {.role = "worker", .name = "3"};
                Party client(std::move(joining));
                EXPECT_NE(client.meet((*server)->address()), 0U);
              },
          .close = [=] { server->reset(); }};
}

Port page() {
  auto server = std::make_shared<std::unique_ptr<http::HttpServer>>();
  return {.name = "Page",
          .open =
              [=] {
                *server = std::make_unique<http::HttpServer>(
                    Endpoint{"127.0.0.1", 0}, http::ServerOptions{.token = secret()},
                    [](const std::string&) { return http::Served{.body = "shown"}; });
                return (*server)->endpoint();
              },
          .expect_service =
              [=] {
                const auto socket = try_connect((*server)->endpoint(), Deadline::after_s(kWait_s));
                const std::string request =
                    text("GET / HTTP/1.1\r\nAuthorization: Bearer ", secret().reveal(), "\r\n\r\n");
                send_all(*socket, std::as_bytes(std::span(request)), Deadline::after_s(kWait_s));
                std::string status(15, '\0');
                receive_all(*socket, std::as_writable_bytes(std::span(status)), Deadline::after_s(kWait_s));
                EXPECT_EQ(status, "HTTP/1.0 200 OK");
              },
          .close = [=] { server->reset(); }};
}

/// A rank that continuously waits for consecutive connections of other ranks.
Port meeting() {
  struct Waiting {
    Socket listening = listen_at({"127.0.0.1", 0});
    std::thread thread{[this] {
      topology::Reception reception(listening, secret(), {.to = 0, .purpose = "a test"});
      for (int from = 1; from != 0;)
        from = reception.next([](int) { return true; }, Deadline::after_s(600)).from;
    }};
    void come(int from) const {
      topology::connect_introduced(listening.local(), secret(), {.from = from, .to = 0, .purpose = "a test"},
                                   Deadline::after_s(kWait_s));
    }
    ~Waiting() {
      come(0);
      thread.join();
    }
  };
  auto waiting = std::make_shared<std::unique_ptr<Waiting>>();
  return {.name = "Meeting",
          .open =
              [=] {
                *waiting = std::make_unique<Waiting>();
                return (*waiting)->listening.local();
              },
          .expect_service = [=] { EXPECT_NO_THROW((*waiting)->come(1)); },
          .close = [=] { waiting->reset(); }};
}

std::int64_t resident_kib() {
  std::ifstream status("/proc/self/status");
  std::int64_t kib = -1;
  for (std::string word; status >> word;)
    if (word == "VmRSS:" && status >> kib) break;
  return kib;
}

class HostileConnections : public testing::TestWithParam<Port> {
 protected:
  /// Opens a wave of connections at the same time, of alternating kinds. All end when this returns.
  static void send_wave(const Endpoint& endpoint) {
    std::vector<Socket> wave;
    for (int i = 0; i < kInAWave; ++i) {
      auto socket = try_connect(endpoint, Deadline::after_s(kWait_s));
      ASSERT_TRUE(socket.has_value());
      const std::string words =
          std::vector<std::string>{"",
                                   "T",
                                   "GET / HTTP/1.1\r\n",
                                   "TRIREME1" + std::string(64, '\0'),
                                   std::string(4000, static_cast<char>(i)),
                                   store::encode_answer({})}[static_cast<std::size_t>(i) % 6];
      // A server may close the connection before all bytes have arrived.
      ::send(socket->fd(), words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (i % 5 == 0) ::shutdown(socket->fd(), SHUT_WR);
      wave.push_back(std::move(*socket));
    }
  }
};

TEST_P(HostileConnections, TwoThousandTakeNoMemoryFromService) {
  const Port& port = GetParam();
  const Endpoint endpoint = port.open();
  port.expect_service();
  std::int64_t warm_kib = 0;
  for (int wave = 0; wave < kWaves; ++wave) {
    if (wave == kWaves / 4) warm_kib = resident_kib();
    ASSERT_NO_FATAL_FAILURE(send_wave(endpoint));
    port.expect_service();
  }
  const std::int64_t end_kib = resident_kib();
  RecordProperty("grown_kib", static_cast<int>(end_kib - warm_kib));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers keep freed memory
  EXPECT_LT(end_kib, warm_kib + kMaxGrowth_kib);
#endif
  port.close();
}

INSTANTIATE_TEST_SUITE_P(AtThePortOf, HostileConnections,
                         testing::Values(store(), channels(), page(), meeting()),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace trireme::wire
