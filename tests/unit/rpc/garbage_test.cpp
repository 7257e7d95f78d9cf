// Messages that no worker of this program sends. The agent that gets one reports it and serves the other
// workers.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "tests/unit/rpc/workers.h"
#include "trireme/base/clock.h"
#include "trireme/base/random.h"
#include "trireme/rpc/internal/protocol.h"
#include "trireme/rpc/parcel.h"
#include "trireme/wire/fields.h"
#include "trireme/wire/node_loop.h"

namespace trireme::rpc {
namespace {

using test::Workers;
using Bytes = std::vector<std::byte>;

std::vector<RRef<int>> pass_back(const std::vector<RRef<int>>& references) { return references; }
constexpr auto& kPassBack = function<"garbage.pass_back", &pass_back>;
double half(double number) { return number / 2; }
constexpr auto& kHalf = function<"garbage.half", &half>;
void fail_at_length(std::size_t length) { throw InvalidArgument(std::string(length, 'x')); }
constexpr auto& kFailAtLength = function<"garbage.fail_at_length", &fail_at_length>;
std::string repeat(std::size_t times) { return std::string(times, 'y'); }
constexpr auto& kRepeat = function<"garbage.repeat", &repeat>;
std::size_t length_of(const std::string& text) { return text.size(); }
constexpr auto& kLengthOf = function<"garbage.length", &length_of>;
std::atomic<bool> may_answer = false;
int answer_late() {
  may_answer.wait(false);
  return 1;
}
constexpr auto& kAnswerLate = function<"garbage.answer_late", &answer_late>;

Bytes random_bytes(Random& random, std::size_t most) {
  Bytes bytes(random.below(most + 1));
  for (auto& each : bytes) each = static_cast<std::byte>(random.below(256));
  return bytes;
}

void mutate(Random& random, Bytes& bytes) {
  for (std::uint64_t left = random.below(4); left > 0 && !bytes.empty(); --left) {
    const std::size_t at = random.below(bytes.size());
    switch (random.below(4)) {
      case 0:
        bytes[at] ^= static_cast<std::byte>(1U << random.below(8));
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2:  // a count, perhaps
        for (std::size_t i = at; i < std::min(at + 4, bytes.size()); ++i) bytes[i] = std::byte{0xFF};
        break;
      default:
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), std::byte{7});
    }
  }
}

Parcel random_parcel(Random& random) {
  Parcel parcel{.fields = random_bytes(random, 100), .annex = random_bytes(random, 20)};
  for (std::uint64_t left = random.below(4); left > 0; --left) {
    parcel.attachments.push_back(wire::Buffer::of(random_bytes(random, 200)));
    parcel.references.push_back({{1, 2, random.below(100)}, static_cast<WorkerId>(random.below(3))});
  }
  if (random.below(8) == 0) parcel.fields.resize(70'000);
  if (random.below(8) == 0) parcel.references.resize(4'000);
  return parcel;
}

TEST(Parcel, RoundTripsAnyNumberOfEachPart) {
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    const Parcel parcel = random_parcel(random);
    const Bytes head = random_bytes(random, 50);
    const wire::Message message = pack(20, head, parcel);
    ASSERT_LE(message.head.size(), wire::Message::kMaxHeadBytes - 8) << "round " << i;
    const auto found = unpack(message);
    ASSERT_TRUE(found) << "round " << i;
    ASSERT_TRUE(std::ranges::equal(found->head, head));
    ASSERT_EQ(found->parcel.fields, parcel.fields);
    ASSERT_EQ(found->parcel.annex, parcel.annex);
    ASSERT_EQ(found->parcel.references.size(), parcel.references.size());
    ASSERT_EQ(found->parcel.attachments.size(), parcel.attachments.size());
    for (std::size_t each = 0; each < parcel.attachments.size(); ++each) {
      ASSERT_TRUE(
          std::ranges::equal(found->parcel.attachments[each].bytes(), parcel.attachments[each].bytes()));
    }
  }
}

TEST(Parcel, ForeignBytesTakeNoExtraMemory) {
  Random random(2);
  std::size_t num_read = 0;
  for (int i = 0; i < 2'000; ++i) {
    wire::Message message = pack(20, random_bytes(random, 50), random_parcel(random));
    Bytes body(message.body.bytes().begin(), message.body.bytes().end());
    if (i % 4 == 0) {
      message.head = random_bytes(random, 200);
      body = random_bytes(random, 200);
    }
    mutate(random, message.head);
    mutate(random, body);
    message.body = wire::Buffer::of(std::move(body));
    const auto found = unpack(message);
    if (!found) continue;
    ++num_read;
    const std::size_t most = message.num_bytes();
    ASSERT_LE(found->head.size() + found->parcel.fields.capacity() + found->parcel.annex.capacity(), most);
    ASSERT_LE(found->parcel.references.size() * 20, most);
    ASSERT_LE(found->parcel.attachments.size() * 8, most);
    for (const auto& each : found->parcel.attachments) {
      const auto bytes = each.bytes(), all = message.body.bytes();
      ASSERT_TRUE(bytes.empty() ||
                  (bytes.data() >= all.data() && bytes.data() + bytes.size() <= all.data() + all.size()));
    }
  }
  EXPECT_GT(num_read, 20u);
}

/// A process that has joined the group and sends given messages to one agent, below the level of calls.
class Stranger final : public wire::Node {
 public:
  Stranger(Directory& directory, WorkerId victim)
      : self_{.id = static_cast<WorkerId>(directory.add("rpc/count", 1)), .name = "stranger"},
        victim_(victim),
        victims_address_(address_of(directory, victim)),
        loop_({.listen = {text("unix:@trireme-stranger-", ::getpid(), "-", self_.id)}}) {
    self_.addresses = loop_.addresses();
    const Bytes bytes = wire::encode(self_);
    directory.set(text("rpc/worker/", self_.id), {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    thread_ = std::thread([this] { loop_.run(*this); });
  }
  ~Stranger() override {
    loop_.stop();
    thread_.join();
  }
  WorkerId id() const { return self_.id; }

  /// Sends a message with the correct sequence number of a worker.
  void say(std::uint16_t kind, Bytes head, Bytes body = {}) {
    say({.kind = kind, .head = std::move(head), .body = wire::Buffer::of(std::move(body))});
  }
  void say(wire::Message message) {
    loop_.post([this, message = std::move(message)]() mutable {
      waiting_.push_back(std::move(message));
      flush();
    });
  }
  /// Sends a message without a sequence number, or with a wrong one. The agent may close the connection.
  void say_raw(wire::Message message) {
    loop_.post([this, message = std::move(message)]() mutable {
      if (is_welcome_) network_->send(connection_, std::move(message));
    });
  }
  /// Waits until all messages were sent on open connections.
  bool has_said_all(double timeout_s) {
    const double until = now_s() + timeout_s;
    while (num_waiting_ != 0 && now_s() < until) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return num_waiting_ == 0;
  }
  bool is_gone() const { return is_gone_; }

 private:
  static constexpr std::uint16_t kHello = 1, kWelcome = 2, kAck = 3;
  struct Hello {
    WorkerId from = 0, to = 0;
    template <class Self>
    static auto fields(Self& self) {
      return std::tie(self.from, self.to);
    }
  };
  struct Welcome {
    WorkerId me = 0;
    bool gone = false;
    std::uint64_t received = 0;
    template <class Self>
    static auto fields(Self& self) {
      return std::tie(self.me, self.gone, self.received);
    }
  };

  static wire::Address address_of(Directory& directory, WorkerId worker) {
    const auto told = directory.get(text("rpc/worker/", worker)).value();
    return wire::decode<WorkerInfo>(std::as_bytes(std::span(told)))->addresses.front();
  }
  void connect() {
    is_welcome_ = false;
    connection_ = network_->connect(victims_address_);
  }
  void flush() {
    num_waiting_ = waiting_.size();
    if (!is_welcome_) return;
    for (auto& each : waiting_) {
      Bytes head(8 + each.head.size());
      const std::uint64_t sequence = ++last_;
      std::memcpy(head.data(), &sequence, 8);
      std::ranges::copy(each.head, head.begin() + 8);
      each.head = std::move(head);
      network_->send(connection_, std::move(each));
    }
    waiting_.clear();
    num_waiting_ = 0;
  }

  void on_start(wire::Surroundings& around) override {
    around_ = &around;
    network_ = &around.network();
    connect();
  }
  void on_connected(wire::ConnectionId id, const wire::PeerIdentity&) override {
    if (id == connection_)
      network_->send(id, {.kind = kHello, .head = wire::encode(Hello{self_.id, victim_})});
  }
  void on_message(wire::ConnectionId id, wire::Message message) override {
    if (message.kind == kHello) {  // the agent reconnects and gets an impossible state
      return network_->send(id, {.kind = kWelcome, .head = wire::encode(Welcome{self_.id, false, ~0ULL})});
    }
    if (id != connection_ || message.kind != kWelcome) return;
    const auto welcome = wire::decode<Welcome>(message.head);
    is_gone_ = welcome->gone;
    last_ = welcome->received;
    is_welcome_ = true;
    flush();
  }
  void on_closed(wire::ConnectionId id, wire::CloseCause, const std::string&) override {
    if (id == connection_) around_->start_timer(0.01);
  }
  void on_timer(wire::TimerId) override { connect(); }

  WorkerInfo self_;
  const WorkerId victim_;
  const wire::Address victims_address_;
  wire::NodeLoop loop_;
  wire::Surroundings* around_ = nullptr;
  wire::Network* network_ = nullptr;
  wire::ConnectionId connection_ = 0;
  std::uint64_t last_ = 0;
  bool is_welcome_ = false;
  std::vector<wire::Message> waiting_;
  std::atomic<std::size_t> num_waiting_ = 0;
  std::atomic<bool> is_gone_ = false;
  std::thread thread_;
};

std::uint16_t number_of(MessageKind kind) { return static_cast<std::uint16_t>(kind); }

/// Counts the reports of agents.
struct Reports {
  std::mutex mutex;
  std::vector<std::string> lines;
  AgentOptions options() {
    return {.timeout_s = 20, .lost_after_s = 0.5, .report = [this](const std::string& line) {
              const std::lock_guard lock(mutex);
              lines.push_back(line);
            }};
  }
  std::size_t count(const std::string& words) {
    const std::lock_guard lock(mutex);
    return static_cast<std::size_t>(std::ranges::count_if(
        lines, [&](const auto& each) { return each.find(words) != std::string::npos; }));
  }
};

bool comes_true(const std::function<bool()>& what) {
  const double until = now_s() + 30;
  while (!what() && now_s() < until) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return what();
}

TEST(Garbage, AgentReportsGarbageAndKeepsServing) {
  Reports reports;
  Workers workers({"victim", "friend"}, reports.options());
  const auto kept = workers["friend"].remote("victim", kHalf, 5.0);
  EXPECT_EQ(kept.to_here(), 2.5);
  Directory& directory = *workers.options().directory;
  const WorkerId victim = workers["victim"].id(), other = workers["friend"].id();
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    Random random(seed);
    Stranger stranger(directory, victim);
    for (int i = 0; i < 400; ++i) {
      const std::uint64_t choice = random.below(8);
      const auto one_of = [&] { return static_cast<WorkerId>(random.below(stranger.id() + 2)); };
      const RefId id{one_of(), one_of(), random.below(4)};
      wire::Message message;
      const auto parceled = [&](MessageKind kind, Bytes head) {
        Parcel parcel = random_parcel(random);
        for (auto& each : parcel.references) each = {{one_of(), one_of(), random.below(3)}, one_of()};
        message = pack(number_of(kind), std::move(head), parcel);
      };
      if (choice < 3) {
        RequestHead head{random.below(50), random.below(2) ? "garbage.half" : "garbage.pass_back", 0,
                         std::nullopt};
        if (random.below(2)) head.fingerprint = find_function(head.function)->fingerprint();
        if (random.below(2)) head.result = id;
        parceled(MessageKind::kRequest, wire::encode(head));
      } else if (choice == 3) {
        AnswerHead head{random.below(20), std::nullopt};
        if (random.below(2)) head.error = CarriedError{"trireme.CommError", "", "no"};
        parceled(MessageKind::kAnswer, wire::encode(head));
      } else if (choice == 4) {
        message = {.kind = number_of(MessageKind::kCancel),
                   .head = wire::encode(CancelHead{random.below(50)})};
      } else if (choice == 5) {
        message = {.kind = number_of(MessageKind::kIntroduced),
                   .head = wire::encode(IntroducedHead{id, other})};
      } else if (choice == 6) {
        message = {.kind = number_of(MessageKind::kDropped), .head = wire::encode(DroppedHead{id, one_of()})};
      } else {
        message = {.kind = static_cast<std::uint16_t>(random.below(40)), .head = random_bytes(random, 60)};
      }
      if (random.below(2)) mutate(random, message.head);
      if (message.kind <= Endpoint::kLastOwnKind || random.below(50) == 0) {
        stranger.say_raw(std::move(message));
      } else {
        stranger.say(std::move(message));
      }
      if (i % 50 == 0) {
        ASSERT_EQ(workers["friend"].rpc_sync("victim", kHalf, 3.0), 1.5) << "seed " << seed;
      }
    }
    ASSERT_TRUE(comes_true([&] { return stranger.is_gone() || stranger.has_said_all(0.1); }))
        << "seed " << seed;
    ASSERT_EQ(workers["friend"].rpc_sync("victim", kHalf, 3.0), 1.5) << "seed " << seed;
    ASSERT_EQ(kept.to_here(), 2.5) << "seed " << seed;
  }
  EXPECT_GT(reports.count("that cannot be read"), 0u);
  EXPECT_EQ(reports.count("worker 'victim' ends"), 0u);
}

TEST(Garbage, UnrequestedAnswerIsIgnored) {
  Reports reports;
  may_answer = false;
  Workers workers({"victim", "friend"}, reports.options());
  const auto answer = workers["victim"].rpc_async("friend", kAnswerLate);  // its first call
  Stranger stranger(*workers.options().directory, workers["victim"].id());
  stranger.say(pack(number_of(MessageKind::kAnswer),
                    wire::encode(AnswerHead{1, CarriedError{"trireme.CommError", "", "it is lost"}}), {}));
  EXPECT_TRUE(comes_true([&] { return reports.count("an answer to a call of another worker") == 1; }));
  may_answer = true;
  may_answer.notify_all();
  EXPECT_EQ(answer.get(), 1);
}

TEST(Garbage, ForbiddenReferencesLeaveNothing) {
  Reports reports;
  Workers workers({"victim", "friend"}, reports.options());
  const auto kept = workers["friend"].remote("victim", kHalf, 5.0);
  EXPECT_EQ(kept.to_here(), 2.5);
  const WorkerId victim = workers["victim"].id(), other = workers["friend"].id();
  const auto& row = kHalf.row();
  const Bytes argument = wire::encode(1.0);
  {
    Stranger stranger(*workers.options().directory, victim);
    std::uint64_t call = 0;
    for (const RefId& id :
         {RefId{other, victim, 2}, RefId{stranger.id(), other, 1}, RefId{stranger.id(), victim, 0}}) {
      const RequestHead head{++call, row.name, row.fingerprint(), id};
      stranger.say(pack(number_of(MessageKind::kRequest), wire::encode(head), {.fields = argument}));
    }
    const RequestHead head{++call, row.name, row.fingerprint(), std::nullopt};
    const RefPass foreign{{other, victim, 9}, other};
    stranger.say(pack(number_of(MessageKind::kRequest), wire::encode(head),
                      {.fields = argument, .references = {foreign}}));
    EXPECT_TRUE(comes_true([&] { return reports.count("a call that cannot be read") == 4; }));
  }
  EXPECT_EQ(workers["victim"].num_values(), 1u);
  EXPECT_EQ(workers["friend"].remote("victim", kHalf, 3.0).to_here(), 1.5);
}

TEST(Agent, AnErrorMayHaveAnyLength) {
  Workers workers({"a", "b"});
  for (const std::size_t length : {70'000u, 3'000'000u}) {
    try {
      workers["a"].rpc_sync("b", kFailAtLength, length);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string(error.what()).substr(0, 1000), std::string(1000, 'x'));
    }
  }
  EXPECT_EQ(workers["a"].rpc_sync("b", kHalf, 1.0), 0.5);
}

TEST(Agent, ACallMayPassThousandsOfReferences) {
  Workers workers({"a", "b"});
  std::vector<RRef<int>> references;
  for (int i = 0; i < 5000; ++i) references.push_back(workers["a"].share(i));
  const auto back = workers["a"].rpc_sync("b", kPassBack, references);
  ASSERT_EQ(back.size(), references.size());
  EXPECT_EQ(*back.back().local_value(), 4999);
}

TEST(Agent, UnacceptedMessageFailsItsCallOnly) {
  Workers workers({"large"});
  workers.options().max_message_bytes = 200 << 10;
  workers.join("small");
  EXPECT_THROW(workers["large"].rpc_sync("small", kLengthOf, std::string(1 << 20, 'x')), InvalidArgument);
  EXPECT_EQ(workers["large"].rpc_sync("small", kLengthOf, std::string("short")), 5u);
  EXPECT_THROW(workers["small"].rpc_sync("large", kRepeat, std::size_t{1} << 20), InvalidArgument);
  EXPECT_EQ(workers["small"].rpc_sync("large", kHalf, 1.0), 0.5);
}

class HooksThatReject final : public CallHooks {
 public:
  void begin_write() override {}
  Annex end_write(WorkerId, const Annex*) override { return {std::byte{1}}; }
  void begin_read() override {}
  void end_read(WorkerId, const Annex&) override {}
  void begin_run(const Annex&) override { throw InvalidArgument("there is no such context"); }
  void end_run() override {}
};

TEST(Agent, InvalidAnnexIsErrorOfItsCall) {
  Workers workers({"a", "b"}, {.hooks = std::make_shared<HooksThatReject>()});
  EXPECT_THROW(workers["a"].rpc_sync("b", kHalf, 1.0), InvalidArgument);
  EXPECT_THROW(workers["a"].rpc_sync("b", kHalf, 1.0), InvalidArgument);
}

}  // namespace
}  // namespace trireme::rpc
