// The store between its server and its clients, with strangers and faults.

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/support/memory_limit.h"
#include "tests/support/ports.h"
#include "trireme/base/error.h"
#include "trireme/wire/internal/store_protocol.h"
#include "trireme/wire/store_client.h"
#include "trireme/wire/store_server.h"

namespace trireme::wire {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr double kLong_s = 60;     // ends a test that would hang; no call is meant to take it
constexpr double kShort_s = 0.3;   // a deadline that is meant to pass
constexpr double kPatience_s = 3;  // another one, in which 15 MiB are sent on a busy machine

const Endpoint kLoopback{"127.0.0.1", 0};

Secret secret(char letter) { return Secret::from_text(std::string(32, letter), "the test"); }

/// A server with its complaints.
class Served {
 public:
  explicit Served(Secret secret = wire::Secret(), double patience_s = kLong_s)
      : secret_(std::move(secret)), server_(listen_at(kLoopback), options(patience_s)) {}

  StoreServer& server() { return server_; }
  StoreClient client() { return StoreClient({server_.endpoint(), secret_, kLong_s}); }
  /// Waits for a complaint. Empty if there is none for a long time.
  std::string complaint() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, Seconds(kLong_s), [&] { return !complaints_.empty(); });
    return complaints_.empty() ? "" : complaints_.front();
  }

  /// A connection without a proof, for any bytes.
  Socket stranger() { return *try_connect(server_.endpoint(), Deadline::after_s(kLong_s)); }
  /// A connection that has proved the secret.
  struct Introduced {
    Socket socket;
    store::Session session;
    void send(const store::Request& request) { Served::send(socket, session.seal(store::encode(request))); }
  };
  Introduced introduced() {
    Socket socket = stranger();
    const auto of_server = *store::decode_hello(receive(socket, store::kHelloBytes));
    const Nonce own = random_nonce();
    proved_ = secret_at(server_.endpoint(), secret_);
    send(socket, store::encode_answer({own, store::proof(proved_, store::Side::kClient, of_server, own)}));
    EXPECT_TRUE(store::decode_verdict(receive(socket, store::kVerdictBytes)));
    return {std::move(socket), store::Session(proved_, store::Side::kClient, of_server, own)};
  }
  static void send(const Socket& socket, const std::string& bytes) {
    send_all(socket, std::as_bytes(std::span(bytes)), Deadline::after_s(kLong_s));
  }
  static std::string receive(const Socket& socket, std::size_t bytes) {
    std::string result(bytes, '\0');
    receive_all(socket, std::as_writable_bytes(std::span(result)), Deadline::after_s(kLong_s));
    return result;
  }

 private:
  StoreServerOptions options(double patience_s) {
    return {.secret = secret_,
            .complain =
                [this](const std::string& what) {
                  const std::lock_guard lock(mutex_);
                  complaints_.push_back(what);
                  changed_.notify_all();
                },
            .patience_s = patience_s};
  }

  Secret secret_, proved_;  ///< the given one, and the proved one, which is the user's key if none is given
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> complaints_;
  StoreServer server_;
};

/// Checks that the server has ended this connection and that there is nothing more to read.
void expect_closed(const Socket& socket) {
  EXPECT_THAT(
      [&] {
        while (true) Served::receive(socket, 1);
      },
      ThrowsMessage<CommError>(testing::AnyOf(HasSubstr("has closed"), HasSubstr("is lost"))));
}

TEST(Store, KeepsValuesOfKeys) {
  Served served;
  StoreClient one = served.client(), other = served.client();
  EXPECT_EQ(one.get("key", kLong_s), std::nullopt);
  one.set("key", std::string("a\0b", 3), kLong_s);
  EXPECT_EQ(other.get("key", kLong_s), std::string("a\0b", 3));
  one.set("", "", kLong_s);
  EXPECT_EQ(other.get("", kLong_s), "");
  EXPECT_TRUE(other.check({"key", ""}, kLong_s));
  EXPECT_FALSE(other.check({"key", "none"}, kLong_s));
  EXPECT_EQ(other.num_keys(kLong_s), 2);
  EXPECT_TRUE(other.remove("key", kLong_s));
  EXPECT_FALSE(one.remove("key", kLong_s));
}

TEST(Store, AddsForManyWithoutLosingOne) {
  Served served;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      StoreClient client = served.client();
      for (int k = 0; k < 500; ++k) client.add("sum", k % 2 == 0 ? 3 : -1, kLong_s);
    });
  }
  for (auto& thread : threads) thread.join();
  StoreClient client = served.client();
  EXPECT_EQ(client.get("sum", kLong_s), "2000");
  client.set("word", "three", kLong_s);
  EXPECT_THAT([&] { client.add("word", 1, kLong_s); },
              ThrowsMessage<InvalidArgument>(HasSubstr("'word' holds no number")));
  EXPECT_EQ(client.add("sum", 1, kLong_s), 2001) << "and goes on";
}

TEST(Store, CompareSetWritesOnlyExpectedValues) {
  Served served;
  StoreClient client = served.client();
  EXPECT_EQ(client.compare_set("key", "other", "new", kLong_s), "other");
  EXPECT_FALSE(client.check({"key"}, kLong_s));
  EXPECT_EQ(client.compare_set("key", "", "first", kLong_s), "first");
  EXPECT_EQ(client.compare_set("key", "other", "new", kLong_s), "first");
  EXPECT_EQ(client.compare_set("key", "first", "second", kLong_s), "second");
  EXPECT_EQ(client.get("key", kLong_s), "second");
}

TEST(Store, WakesWaiterWithLastKey) {
  Served served;
  StoreClient one = served.client(), other = served.client();
  std::atomic<bool> woken = false;
  std::thread waiting([&] { woken = one.wait({"a", "b", "c"}, kLong_s); });
  for (const char* key : {"c", "a", "b"}) {
    EXPECT_FALSE(woken);
    other.set(key, "", kLong_s);
  }
  waiting.join();
  EXPECT_TRUE(woken);
}

TEST(Store, EndsWaitAtTimeoutAndServesNext) {
  Served served;
  StoreClient client = served.client();
  EXPECT_FALSE(client.wait({"never"}, kShort_s));
  client.set("never", "now", kLong_s);
  EXPECT_TRUE(client.wait({"never"}, kShort_s));
}

TEST(Store, TakesThousandsOfKeysAndLargeValues) {
  Served served;
  StoreClient client = served.client();
  for (int i = 0; i < 5000; ++i) client.set(text("key/", i), text(i), kLong_s);
  EXPECT_EQ(client.num_keys(kLong_s), 5000);
  EXPECT_EQ(client.get("key/4999", kLong_s), "4999");
  std::string large(15 << 20, 'x');
  large.back() = 'y';
  client.set("large", large, kLong_s);
  EXPECT_EQ(client.get("large", kLong_s), large);
  EXPECT_THAT([&] { client.set("larger", large + large, kLong_s); },
              ThrowsMessage<InvalidArgument>(HasSubstr("too large for a store")));
  EXPECT_EQ(client.get("larger", kLong_s), std::nullopt);
}

// Client, server and table are in this process. Each side stores the value once, in a frame or in the table.
TEST(Store, CopiesLargeValueOncePerSide) {
  Served served;
  StoreClient client = served.client();
  client.set("small", "value", kLong_s);
  const std::string large(15 << 20, 'x');
  const test::MemoryLimit limit(60 << 20);
  client.set("large", large, kLong_s);
  EXPECT_EQ(client.get("large", kLong_s)->size(), large.size());
}

TEST(Store, KnowsWhenAllClientsHaveLeft) {
  Served served;
  EXPECT_TRUE(served.server().wait_until_left(kLong_s));
  const Socket silent = served.stranger();  // does not count
  auto client = std::make_unique<StoreClient>(StoreClientOptions{served.server().endpoint(), {}, kLong_s});
  EXPECT_FALSE(served.server().wait_until_left(kShort_s));
  client.reset();
  EXPECT_TRUE(served.server().wait_until_left(kLong_s));
}

class Garbage : public testing::TestWithParam<std::string> {};

TEST_P(Garbage, EndsItsOwnConnectionOnly) {
  Served served(secret('a'));
  StoreClient client = served.client();
  client.set("key", "value", kLong_s);
  const Socket stranger = served.stranger();
  Served::send(stranger, GetParam());
  expect_closed(stranger);
  EXPECT_THAT(served.complaint(), AllOf(HasSubstr(stranger.local().text()), HasSubstr("does not speak")));
  EXPECT_EQ(client.get("key", kLong_s), "value");
}

TEST_P(Garbage, EndsOnlyItsConnectionAfterProof) {
  Served served(secret('a'));
  StoreClient client = served.client();
  client.set("key", "value", kLong_s);
  const Socket rank = served.introduced().socket;
  Served::send(rank, GetParam());
  expect_closed(rank);
  EXPECT_THAT(served.complaint(), HasSubstr(rank.local().text()));
  EXPECT_EQ(client.get("key", kLong_s), "value");
}

INSTANTIATE_TEST_SUITE_P(
    Store, Garbage,
    testing::Values("GET / HTTP/1.1\r\nHost: a-host-with-a-rather-long-name.example\r\n\r\n"
                    "and some more of it",
                    std::string(1000, '\xff'), std::string(1000, '\0')),
    [](const auto& test) { return text("Number", test.index); });

TEST(Store, ClosesAConnectionThatSaysNothing) {
  Served served(secret('a'), kShort_s);
  const Socket silent = served.stranger();
  expect_closed(silent);
  EXPECT_THAT(served.complaint(), HasSubstr("has not shown that it knows the job's secret"));
  StoreClient client = served.client();
  client.set("key", "value", kLong_s);
  std::this_thread::sleep_for(Seconds(3 * kShort_s));
  EXPECT_EQ(client.get("key", kLong_s), "value") << "one that is known may be silent";
  EXPECT_EQ(served.server().num_clients(), 1);
}

TEST(Store, ClosesConnectionStoppedMidRequest) {
  Served served(Secret(), kShort_s);
  auto [socket, session] = served.introduced();
  store::Request request{.action = store::Action::kSet, .keys = {"key"}, .value = "value"};
  const std::string message = session.seal(store::encode(request));
  Served::send(socket, message.substr(0, message.size() - 1));
  expect_closed(socket);
  EXPECT_THAT(served.complaint(), HasSubstr("the rest of a request"));
  EXPECT_EQ(served.client().get("key", kLong_s), std::nullopt);
}

TEST(Store, ClosesClientThatTakesNoReply) {
  Served served(Secret(), kPatience_s);
  StoreClient client = served.client();
  client.set("large", std::string(15 << 20, 'x'), kLong_s);
  auto rank = served.introduced();
  rank.send({.action = store::Action::kGet, .keys = {"large"}});
  client.set("key", "value", kLong_s);
  EXPECT_EQ(client.get("key", kLong_s), "value");
  EXPECT_THAT(served.complaint(), HasSubstr("does not take what it is sent"));
  EXPECT_EQ(client.get("key", kLong_s), "value");
}

TEST(Store, TellsBothSidesOfAnotherSecret) {
  Served served(secret('a'));
  const auto connect = [&](const Secret& own) {
    return [&served, own] { StoreClient({served.server().endpoint(), own, kLong_s}); };
  };
  const std::string where = served.server().endpoint().text();
  EXPECT_THAT(connect(secret('b')),
              ThrowsMessage<CommError>(AllOf(HasSubstr(where), HasSubstr("rejects this process"))));
  EXPECT_THAT(served.complaint(), AllOf(HasSubstr("127.0.0.1:"), HasSubstr("another secret")));
  EXPECT_THAT(connect(Secret()), ThrowsMessage<CommError>(HasSubstr("(none)")));
  EXPECT_NO_THROW(connect(secret('a'))());
}

/// Listens at the store's address. Sends `hello`, and then `verdict` for any message.
class Impostor {
 public:
  Impostor(const std::string& hello, const std::string& verdict)
      : listening_(listen_at(kLoopback)), thread_([this, hello, verdict] {
          while (true) {
            const Socket socket(::accept(listening_.fd(), nullptr, nullptr));
            if (socket.fd() < 0) {
              std::this_thread::sleep_for(std::chrono::milliseconds(5));
              continue;
            }
            Served::send(socket, hello);
            if (!verdict.empty()) Served::receive(socket, store::kAnswerBytes);
            Served::send(socket, verdict);
            return;
          }
        }) {}
  ~Impostor() { thread_.join(); }
  Impostor(const Impostor&) = delete;
  Impostor& operator=(const Impostor&) = delete;
  Endpoint endpoint() const { return listening_.local(); }

 private:
  Socket listening_;
  std::thread thread_;
};

TEST(StoreClient, RejectsServerWithoutSecret) {
  const Digest guessed{};
  const Impostor impostor(store::encode_hello(random_nonce()), store::encode_verdict(&guessed));
  EXPECT_THAT(
      [&] {
        StoreClient({impostor.endpoint(), secret('a'), kLong_s});
      },
      ThrowsMessage<CommError>(HasSubstr("does not know the secret")));
}

TEST(StoreClient, SaysThatAnotherProgramListensThere) {
  const Impostor impostor("220 mail.example ESMTP: what can I do for you?", "");
  EXPECT_THAT(
      [&] {
        StoreClient({impostor.endpoint(), Secret(), kLong_s});
      },
      ThrowsMessage<CommError>(HasSubstr("another program listens there")));
}

TEST(StoreClient, GivesUpOnMissingOrSilentServer) {
  const Endpoint nowhere{"127.0.0.1", test::free_port()};
  EXPECT_THAT(
      [&] {
        StoreClient({nowhere, Secret(), kShort_s});
      },
      ThrowsMessage<CommError>(AllOf(HasSubstr("no process serves"), HasSubstr(nowhere.text()))));
  const Socket deaf = listen_at(kLoopback);  // the kernel connects, but no process accepts
  EXPECT_THAT(
      [&] {
        StoreClient({deaf.local(), Secret(), kShort_s});
      },
      ThrowsMessage<CommError>(HasSubstr("does not answer")));
}

TEST(StoreClient, AwaitsServerThatStartsLater) {
  const Endpoint place{"127.0.0.1", test::free_port()};
  std::atomic<bool> over = false;
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const StoreServer server(listen_at(place), {});
    while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  StoreClient client({place, Secret(), kLong_s});
  client.set("key", "value", kLong_s);
  EXPECT_EQ(client.get("key", kLong_s), "value");
  over = true;
  late.join();
}

/// A server in its own process, which can be stopped.
class ServerProcess {
 public:
  ServerProcess() {
    Socket listening = listen_at(kLoopback);
    endpoint_ = listening.local();
    pid_ = ::fork();
    if (pid_ != 0) return;
    StoreServer server(std::move(listening), {});
    while (::getppid() != 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ::_exit(0);
  }
  ~ServerProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  const Endpoint& endpoint() const { return endpoint_; }
  void send_signal(int signal) const {
    ::kill(pid_, signal);
    int status = 0;
    if (signal == SIGSTOP) ::waitpid(pid_, &status, WUNTRACED);
  }

 private:
  Endpoint endpoint_;
  int pid_ = -1;
};

TEST(StoreClient, EndsCallsToFrozenServerAndRecovers) {
  const ServerProcess server;
  StoreClient client({server.endpoint(), Secret(), kShort_s});
  client.set("key", "value", kLong_s);
  server.send_signal(SIGSTOP);
  for (int call = 0; call < 2; ++call) {
    EXPECT_THAT(
        [&] { client.get("key", kShort_s); },
        ThrowsMessage<CommError>(AllOf(HasSubstr(server.endpoint().text()), HasSubstr("does not answer"))));
  }
  EXPECT_THROW(client.wait({"key"}, kShort_s), CommError);
  server.send_signal(SIGCONT);
  EXPECT_EQ(client.get("key", kLong_s), "value");
}

TEST(StoreClient, ReportsLostServerAtOnce) {
  auto server = std::make_unique<ServerProcess>();
  StoreClient client({server->endpoint(), Secret(), kLong_s});
  server.reset();
  EXPECT_THROW(client.set("key", "value", kLong_s), CommError);
  EXPECT_THAT([&] { client.set("key", "value", kLong_s); },
              ThrowsMessage<CommError>(HasSubstr("no process listens there")));
}

TEST(Store, IsNotServedRemotelyWithoutSecret) {
  const Endpoint everywhere{"0.0.0.0", 0};
  EXPECT_THAT(
      [&] { StoreServer(listen_at(everywhere), {}); },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("the job has no secret"), HasSubstr("TRIREME_SECRET"))));
  EXPECT_NO_THROW(StoreServer(listen_at(everywhere), {.secret = secret('a')}));
  EXPECT_THROW(StoreClient({Endpoint{"192.0.2.1", 29500}, Secret(), kShort_s}), InvalidArgument);
}

TEST(Endpoint, IsWrittenWithItsPort) {
  EXPECT_EQ(Endpoint::parse("node0:29500", "X").text(), "node0:29500");
  EXPECT_EQ(Endpoint::parse("[::1]:29500", "X").host, "::1");
  EXPECT_EQ(Endpoint::parse("[::1]:29500", "X").text(), "[::1]:29500");
  for (const char* bad : {"", "node0", ":29500", "node0:", "node0:0", "node0:65536", "node0:1x"}) {
    EXPECT_THAT([&] { Endpoint::parse(bad, "TRIREME_STORE"); },
                ThrowsMessage<InvalidArgument>(HasSubstr("TRIREME_STORE is '")))
        << bad;
  }
}

}  // namespace
}  // namespace trireme::wire
