// Failures and recovery: peers that die, freeze, flood and send false values, nodes that throw, and loops
// that run twice.

#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <random>

#include "tests/unit/wire/channel_party.h"
#include "trireme/base/error.h"
#include "trireme/wire/internal/channel_address.h"
#include "trireme/wire/internal/handshake.h"
#include "trireme/wire/internal/ring_stream.h"
#include "trireme/wire/internal/send_queue.h"
#include "trireme/wire/socket.h"
#include "trireme/wire/user_key.h"

namespace trireme::wire {
namespace {

using testing::HasSubstr;

const Address kAnyPort = "tcp:127.0.0.1:0";

NodeLoopOptions at(const Address& address) {
  NodeLoopOptions options;
  options.listen = {address};
  return options;
}

/// A process that serves until it is killed. Forked before this test has threads.
class ServingChild {
 public:
  ServingChild(const Address& address,
               const std::function<void(Network&, ConnectionId, Message)>& on_message) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      Party party(at(address), on_message);
      const std::string& where = party.address();
      [[maybe_unused]] const auto told = ::write(ends[1], where.data(), where.size());
      ::close(ends[1]);
      while (true) ::pause();
    }
    ::close(ends[1]);
    char buffer[200];
    const ssize_t got = ::read(ends[0], buffer, sizeof buffer);
    address_.assign(buffer, static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    ::close(ends[0]);
  }
  ~ServingChild() { kill(); }
  const Address& address() const { return address_; }
  void signal(int number) { ::kill(pid_, number); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  Address address_;
};

class ChannelFault : public testing::TestWithParam<const char*> {
 protected:
  Address address() const {
    return std::string(GetParam()) == "tcp" ? kAnyPort : "unix:" + (folder_ / "s/socket").string();
  }
  NodeLoopOptions options(const Address& address = "") const {
    NodeLoopOptions result;
    if (!address.empty()) result.listen = {address};
    if (std::string(GetParam()) == "unix") result.shared_memory = SharedMemoryUse::kNever;
    return result;
  }
  test::TemporaryFolder folder_;
};

TEST_P(ChannelFault, KilledPeerIsNoticedAndOthersContinue) {
  ServingChild child(address(), [](Network& network, ConnectionId from, Message message) {
    network.send(from, std::move(message));
  });
  Party server(at(kAnyPort)), client(options());
  const ConnectionId doomed = client.meet(child.address());
  const ConnectionId good = client.meet(server.address());
  ASSERT_NE(doomed, 0u);
  client.send(doomed, {.body = body_of(10)});
  client.next_message();
  // While messages are sent both ways.
  const Buffer large = body_of(32 << 20);
  for (int i = 0; i < 4; ++i) client.send(doomed, {.body = large});
  child.kill();
  const Closing closing = client.next_closing();
  EXPECT_EQ(closing.connection, doomed);
  EXPECT_EQ(closing.cause, CloseCause::kByPeer);
  client.send(doomed, {.body = body_of(10)});  // this has no effect
  client.send(good, {.body = body_of(10)});
  EXPECT_TRUE(server.wait_for_messages(1));
}

TEST_P(ChannelFault, FrozenPeerIsTooSlow) {
  ServingChild child(address(), {});
  auto patient = options();
  patient.patience_s = 1;
  Party client(std::move(patient));
  const ConnectionId to = client.meet(child.address());
  child.signal(SIGSTOP);
  client.send(to, {.body = body_of(64 << 20)});
  const Closing closing = client.next_closing();
  EXPECT_EQ(closing.cause, CloseCause::kTooSlow);
  EXPECT_THAT(closing.reason, HasSubstr("taken nothing"));
}

TEST_P(ChannelFault, PausedReceiverBoundsBufferWithoutLoss) {
  Party server(options(address()));
  Party client(options());
  const ConnectionId to = client.meet(server.address());
  ASSERT_TRUE(server.wait_for_peers(1));
  const ConnectionId from = server.peers().begin()->first;
  server.act_now([&](Network& network) { network.pause(from); });
  constexpr std::size_t kMessages = 2000, kBytes = 64 << 10;
  const Buffer body = body_of(kBytes);
  client.act_now([&](Network& network) {
    for (std::size_t i = 0; i < kMessages; ++i)
      network.send(to, {.kind = static_cast<std::uint16_t>(i), .body = body});
  });
  // The bytes that have left the sender are in the kernel or the ring: a few MiB of the 125.
  std::size_t before = 0, waiting = 1;
  while (waiting != before) {
    before = waiting;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    client.act_now([&](Network& network) { waiting = network.waiting_bytes(to); });
  }
  EXPECT_GT(waiting, kMessages * kBytes - (16 << 20));
  EXPECT_EQ(server.num_messages(), 0u);
  server.act_now([&](Network& network) { network.resume(from); });
  for (std::size_t i = 0; i < kMessages; ++i) ASSERT_EQ(server.next_message().kind, i);
}

TEST_P(ChannelFault, NodeMayPauseAtEveryMessage) {
  std::atomic<Party*> self = nullptr;
  std::vector<std::uint16_t> kinds;
  Party server(options(address()), [&](Network& network, ConnectionId from, Message message) {
    kinds.push_back(message.kind);
    network.pause(from);
    self.load()->act([from](Network& later) { later.resume(from); });
  });
  self = &server;
  Party client(options());
  const ConnectionId to = client.meet(server.address());
  constexpr std::uint16_t kMessages = 500;
  client.act([to](Network& network) {
    for (std::uint16_t i = 0; i < kMessages; ++i) network.send(to, {.kind = i, .body = body_of(i * 40)});
  });
  ASSERT_TRUE(server.wait_for_messages(kMessages));
  server.stop();
  for (std::uint16_t i = 0; i < kMessages; ++i) ASSERT_EQ(kinds[i], i);
}

TEST_P(ChannelFault, ConnectionsComeAndGoByTheThousand) {
  Party server(options(address()), [](Network& network, ConnectionId from, Message message) {
    network.send(from, std::move(message));
  });
  Party client(options());
  for (int round = 0; round < 1000; ++round) {
    const ConnectionId to = client.meet(server.address());
    ASSERT_NE(to, 0u);
    client.send(to, {.body = body_of(100)});
    client.next_message();
    client.act([to](Network& network) { network.close(to); });
  }
  EXPECT_EQ(server.counted("channels opened"), 1000u);
  int descriptors = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/fd"))
    ++descriptors;
  EXPECT_LT(descriptors, 100);
}

INSTANTIATE_TEST_SUITE_P(EachWay, ChannelFault, testing::Values("tcp", "unix", "shm"),
                         [](const auto& each) { return std::string(each.param); });

TEST(ChannelLoop, NobodyAtAnAddressIsUnreachable) {
  Party client({});
  for (const Address address :
       {"tcp:127.0.0.1:1", "unix:/nowhere/socket", "inproc:nobody", "tcp:no.such.host.invalid:9"}) {
    EXPECT_EQ(client.meet(address), 0u);
    const Closing closing = client.next_closing();
    EXPECT_EQ(closing.cause, CloseCause::kUnreachable) << closing.reason;
  }
  EXPECT_THROW(ChannelAddress::parse("carrier-pigeon:1"), InvalidArgument);
}

// As with a frozen process: its host accepts the connection.
TEST(ChannelLoop, AcceptedButUnansweredConnectionIsSilent) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&at), length), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&at), &length), 0);
  NodeLoopOptions options;
  options.handshake_s = 0.3;
  Party client(options);
  EXPECT_EQ(client.meet(text("tcp:127.0.0.1:", ntohs(at.sin_port))), 0u);
  const Closing closing = client.next_closing();
  EXPECT_EQ(closing.cause, CloseCause::kSilent) << closing.reason;
  EXPECT_THAT(closing.reason, HasSubstr("has not finished the handshake within"));
  ::close(listener);
}

TEST(ChannelLoop, ANameIsLookedUp) {
  Party server(at(kAnyPort)), client({});
  const auto port = server.address().substr(server.address().rfind(':'));
  EXPECT_NE(client.meet("tcp:localhost" + port), 0u);
}

TEST(ChannelLoop, OtherSchemesAreResolvedPerConnection) {
  Party first(at(kAnyPort)), second(at(kAnyPort));
  std::vector<Address> asked;
  NodeLoopOptions options;
  options.look_up = [&](const Address& address) {
    asked.push_back(address);  // one at a time, because the test waits for each
    if (asked.size() == 1) return first.address();
    if (asked.size() == 2) return second.address();
    if (asked.size() == 3) return Address("nowhere");
    throw CommError("nobody leads");
  };
  Party client(options);
  const Address leader = "directory://leader";
  const ConnectionId to_first = client.connect(leader);
  client.send(to_first, {.body = body_of(10)});  // before its address is resolved
  EXPECT_TRUE(first.wait_for_messages(1));
  EXPECT_NE(client.meet(leader), 0u);
  EXPECT_TRUE(second.wait_for_peers(1));
  for (const std::string reason : {"no address", "nobody leads"}) {
    EXPECT_EQ(client.meet(leader), 0u);
    const Closing closing = client.next_closing();
    EXPECT_EQ(closing.cause, CloseCause::kUnreachable);
    EXPECT_THAT(closing.reason, HasSubstr(reason));
    EXPECT_THAT(closing.reason, HasSubstr(leader)) << "it says who was looked for";
  }
  EXPECT_EQ(asked, std::vector<Address>(4, leader));
  EXPECT_NE(client.meet(first.address()), 0u);
  EXPECT_EQ(asked.size(), 4u) << "its own addresses need nobody's help";
}

TEST(ChannelLoop, OversizedMessageIsErrorOfSender) {
  Party server([] {
    auto options = at(kAnyPort);
    options.limits = {.max_message_bytes = 1000, .max_unfinished_bytes = 2000};
    return options;
  }());
  Party client({});
  const ConnectionId to = client.meet(server.address());
  client.act_now([&](Network& network) {
    EXPECT_THAT([&] { network.send(to, {.body = body_of(1001)}); },
                testing::ThrowsMessage<InvalidArgument>(HasSubstr("at most 1000 B")));
    EXPECT_THROW(network.send(to, {.head = std::vector<std::byte>(Message::kMaxHeadBytes + 1)}),
                 InvalidArgument);
    network.send(to, {.body = body_of(1000)});
  });
  EXPECT_TRUE(server.wait_for_messages(1));
}

TEST(ChannelLoop, MoreThanMayWaitClosesTheChannel) {
  Party server(at(kAnyPort));
  auto options = NodeLoopOptions();
  options.max_waiting_bytes = 1 << 20;
  Party client(std::move(options));
  const ConnectionId to = client.meet(server.address());
  client.act([to](Network& network) {
    for (int i = 0; i < 3; ++i) network.send(to, {.body = body_of(1 << 20)});
  });
  EXPECT_EQ(client.next_closing().cause, CloseCause::kTooSlow);
}

TEST(ChannelLoop, NodeExceptionEndsServiceAndLoopRestarts) {
  struct Thrower final : Node {
    void on_start(Surroundings&) override {}
    void on_connected(ConnectionId, const PeerIdentity&) override {}
    void on_message(ConnectionId, Message) override { throw DataError("the disk is gone"); }
    void on_closed(ConnectionId, CloseCause, const std::string&) override {}
    void on_timer(TimerId) override {}
  } thrower;
  struct Counter final : Node {
    NodeLoop& loop;
    int messages = 0;
    explicit Counter(NodeLoop& served) : loop(served) {}
    void on_start(Surroundings&) override {}
    void on_connected(ConnectionId, const PeerIdentity&) override {}
    void on_message(ConnectionId, Message) override {
      ++messages;
      loop.stop();
    }
    void on_closed(ConnectionId, CloseCause, const std::string&) override {}
    void on_timer(TimerId) override {}
  };
  NodeLoop loop(at(kAnyPort));
  Party client({});
  const ConnectionId first = client.connect(loop.addresses().front());
  client.send(first, {.body = body_of(10)});
  EXPECT_THAT([&] { loop.run(thrower); }, testing::ThrowsMessage<DataError>(HasSubstr("the disk is gone")));
  EXPECT_EQ(client.next_closing().cause, CloseCause::kByPeer);
  Counter counter(loop);
  const ConnectionId second = client.connect(loop.addresses().front());
  client.send(second, {.body = body_of(10)});
  loop.run(counter);
  EXPECT_EQ(counter.messages, 1);
}

TEST(ChannelLoop, CloseIsLastEventOfConnection) {
  std::atomic<int> later{0};
  std::atomic<bool> closed{false};
  Party server(at(kAnyPort), [&](Network& network, ConnectionId from, Message) {
    if (closed) ++later;
    closed = true;
    network.send(from, {.kind = 9});
    network.close(from);
    network.close(from);
  });
  Party client({});
  const ConnectionId to = client.meet(server.address());
  client.act([to](Network& network) {
    for (int i = 0; i < 100; ++i) network.send(to, {.body = body_of(10)});
  });
  EXPECT_EQ(client.next_closing().connection, to);
  EXPECT_EQ(later, 0);
}

TEST(ChannelLoop, TimersFireInOrderUnlessStopped) {
  struct Timed final : Node {
    NodeLoop& loop;
    std::vector<TimerId> started, fired;
    explicit Timed(NodeLoop& served) : loop(served) {}
    void on_start(Surroundings& surroundings) override {
      for (const double after_s : {0.03, 0.01, 0.02}) started.push_back(surroundings.start_timer(after_s));
      surroundings.stop_timer(started[2]);
    }
    void on_connected(ConnectionId, const PeerIdentity&) override {}
    void on_message(ConnectionId, Message) override {}
    void on_closed(ConnectionId, CloseCause, const std::string&) override {}
    void on_timer(TimerId timer) override {
      fired.push_back(timer);
      if (timer == started[0]) loop.stop();
    }
  };
  NodeLoop loop({});
  Timed timed(loop);
  loop.run(timed);
  EXPECT_THAT(timed.fired, testing::ElementsAre(timed.started[1], timed.started[0]));
}

/// A peer after a handshake with a server. It then sends bytes of the test.
Socket introduced(const Address& address, bool shared_memory = false,
                  std::unique_ptr<RingMemory>* memory = nullptr) {
  const auto found = resolve(ChannelAddress::parse(address)).front();
  Socket socket(::socket(found.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(socket.fd(), found.get(), found.length), 0);
  Handshake handshake({.secret = found.family() == AF_UNIX ? Secret() : user_key(),
                       .listening_address = far_end(socket.fd()),
                       .connecting_address = near_end(socket.fd()),
                       .shared_memory = shared_memory});
  while (handshake.state() == Handshake::State::kUnderWay) {
    std::string bytes(handshake.wanted(), '\0');
    const iovec part{bytes.data(), bytes.size()};
    const PassedBytes passed = read_with_descriptor(socket.fd(), {&part, 1});
    if (passed.moved.flow == Flow::kNotNow) continue;
    if (passed.descriptor >= 0 && memory != nullptr) *memory = RingMemory::receive(passed.descriptor);
    handshake.take(bytes.substr(0, passed.moved.bytes));
    const std::string out = handshake.take_output();
    EXPECT_EQ(::send(socket.fd(), out.data(), out.size(), MSG_NOSIGNAL), static_cast<ssize_t>(out.size()));
  }
  EXPECT_EQ(handshake.state(), Handshake::State::kDone);
  return socket;
}

TEST(ChannelLoop, DamagedStreamsAreClosedWithoutSideEffects) {
  Party server(at(kAnyPort), [](Network& network, ConnectionId from, Message message) {
    network.send(from, std::move(message));
  });
  Party client({});
  const ConnectionId good = client.meet(server.address());
  SendQueue queue({.chunk_bytes = 4096, .age_bytes = 4096});
  for (int i = 0; i < 5; ++i) queue.push({.priority = static_cast<Priority>(i % 2), .body = body_of(6000)});
  std::string stream;
  for (const iovec& part : queue.next(1 << 20, 96))
    stream.append(static_cast<const char*>(part.iov_base), part.iov_len);
  std::mt19937_64 random(5);
  constexpr int kRounds = 300;
  for (int round = 0; round < kRounds; ++round) {
    std::string bad = stream;
    if (round % 3 == 0) {
      bad[random() % bad.size()] ^= static_cast<char>(1 << random() % 8);
    } else if (round % 3 == 1) {
      bad.erase(random() % bad.size(), 1 + random() % 100);
    } else {
      bad.resize(random() % bad.size());
    }
    const Socket socket = introduced(server.address());
    ::send(socket.fd(), bad.data(), bad.size(), MSG_NOSIGNAL);
    client.send(good, {.kind = static_cast<std::uint16_t>(round), .body = body_of(3000)});
    ASSERT_EQ(client.next_message().kind, round);
  }
  EXPECT_GT(server.counted("channels closed: bad frame"), 100u);
  EXPECT_GT(server.counted("bad frame: payload checksum"), 0u);
  EXPECT_TRUE(client.peers().contains(good));
}

TEST(ChannelLoop, UnfinishedFrameIsTooSlow) {
  auto options = at(kAnyPort);
  options.patience_s = 1;
  Party server(std::move(options));
  const Socket socket = introduced(server.address());
  const auto header = encode({.message = 1, .total_bytes = 1 << 30, .payload_bytes = 1 << 20});
  ASSERT_EQ(::send(socket.fd(), header.data(), header.size(), 0), 64);
  EXPECT_EQ(server.next_closing().cause, CloseCause::kTooSlow);
}

TEST(ChannelLoop, FalseSharedMemoryPositionClosesConnection) {
  const test::TemporaryFolder folder;
  Party server(at("unix:" + (folder / "s/socket").string()));
  for (const bool of_writer : {true, false}) {
    std::unique_ptr<RingMemory> memory;
    const Socket socket = introduced(server.address(), true, &memory);
    ASSERT_NE(memory, nullptr);
    // The other end cannot truncate it while it is mapped.
    EXPECT_NE(::ftruncate(memory->descriptor(), 4096), 0);
    ASSERT_TRUE(server.wait_for_peers(1));
    const ConnectionId peer = server.peers().begin()->first;
    (of_writer ? memory->from_connector().control->written : memory->from_listener().control->read) = 1u
                                                                                                      << 30;
    server.send(peer, {.body = body_of(10)});
    ::send(socket.fd(), "\1", 1, MSG_NOSIGNAL);
    const Closing closing = server.next_closing();
    EXPECT_EQ(closing.cause, CloseCause::kBadFrame);
    EXPECT_THAT(closing.reason, HasSubstr("where its end cannot be"));
  }
}

TEST(ChannelLoop, RejectsTruncatableMemory) {
  const int open_ended = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(open_ended, 4096 + 2 * 65536), 0);
  EXPECT_EQ(RingMemory::receive(open_ended), nullptr);
  EXPECT_EQ(RingMemory::receive(::dup(0)), nullptr);
  EXPECT_NE(RingMemory::receive(::dup(RingMemory::create(65536)->descriptor())), nullptr);
}

}  // namespace
}  // namespace trireme::wire
