// RPC between agents of one process, over real sockets.

#include "trireme/rpc/agent.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "tests/support/certificates.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/rpc/workers.h"

namespace trireme::rpc {
namespace {

using test::thrown_by;
using test::Workers;

double add(double a, double b) { return a + b; }
constexpr auto& kAdd = function<"add", &add>;

struct Point {
  int x = 0, y = 0;
  std::string label;
  bool operator==(const Point&) const = default;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.x, self.y, self.label);
  }
};
using Everything = std::tuple<std::string, std::vector<double>, std::map<std::string, std::vector<Point>>,
                              std::optional<int>, std::pair<bool, std::uint64_t>>;
Everything echo(const Everything& everything) { return everything; }
constexpr auto& kEcho = function<"echo", &echo>;

std::size_t length(const std::string& text) { return text.size(); }
constexpr auto& kLength = function<"length", &length>;

class GameOver : public std::runtime_error {
 public:
  explicit GameOver(const std::string& message) : std::runtime_error(message) {}
};
const bool kGameOverIsKnown = carry_exception<GameOver>("GameOver");
struct Unheard : std::exception {
  const char* what() const noexcept override { return "of no family"; }
};

void raise(int which) {
  if (which == 0) throw InvalidArgument("too thin");
  if (which == 1) throw std::out_of_range("too far");
  if (which == 2) throw GameOver("too late");
  if (which == 3) throw Unheard();
  throw 7;
}
constexpr auto& kRaise = function<"raise", &raise>;

std::atomic<int> num_slow = 0;
int slow(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  return ++num_slow;
}
constexpr auto& kSlow = function<"slow", &slow>;

/// Blocks a thread of the pool.
std::atomic<bool> the_only_thread_may_go_on = false;
void hold() { the_only_thread_may_go_on.wait(false); }
constexpr auto& kHold = function<"hold", &hold>;

int bounce(int depth, const std::string& to, const std::string& back);
constexpr auto& kBounce = function<"bounce", &bounce>;
int bounce(int depth, const std::string& to, const std::string& back) {
  return depth == 0 ? 0 : 1 + this_agent()->rpc_sync(to, kBounce, depth - 1, back, to);
}

Promise<int> answer_to_come;
Future<int> wait_for_answer() { return answer_to_come.future(); }
constexpr auto& kWaitForAnswer = function<"wait_for_answer", &wait_for_answer>;

TEST(Agent, RemoteFunctionIsCalledByName) {
  Workers workers({"a", "b"});
  EXPECT_EQ(workers["a"].rpc_sync("b", kAdd, 1.5, 2), 3.5);
  EXPECT_EQ(workers["b"].rpc_sync("a", kAdd, 1, 2), 3);
  EXPECT_EQ(workers["a"].rpc_sync("a", kAdd, 1, 2), 3) << "a worker can call itself";
}

TEST(Agent, ArgumentsOfAllKindsRoundTrip) {
  Workers workers({"a", "b"});
  const Everything some{"text", {1, 2.5}, {{"k", {{1, 2, "p"}, {3, 4, ""}}}}, 7, {true, 1ull << 63}};
  EXPECT_EQ(workers["a"].rpc_sync("b", kEcho, some), some);
  const Everything none{};
  EXPECT_EQ(workers["a"].rpc_sync("b", kEcho, none), none);
  const std::string large(5 << 20, 'x');  // larger than a message header can be
  EXPECT_EQ(workers["a"].rpc_sync("b", kLength, large), large.size());
}

TEST(Agent, TenThousandCallsArePendingAtOnce) {
  Workers workers({"a", "b"});
  std::vector<Future<double>> futures;
  for (int i = 0; i < 10'000; ++i) futures.push_back(workers["a"].rpc_async("b", kAdd, i, 1));
  const auto sums = when_all(futures).get();
  for (int i = 0; i < 10'000; ++i) ASSERT_EQ(sums[static_cast<std::size_t>(i)], i + 1);
}

TEST(Agent, FuturesAreContinuedAndGathered) {
  Workers workers({"a", "b"});
  const auto& a = workers["a"];
  const auto text_of = [](double sum) { return std::to_string(static_cast<int>(sum)); };
  EXPECT_EQ(a.rpc_async("b", kAdd, 1, 2).then(text_of).get(), "3");
  const auto [sum, size] = when_all(a.rpc_async("b", kAdd, 1, 2), a.rpc_async("b", kLength, "four")).get();
  EXPECT_EQ(sum, 3);
  EXPECT_EQ(size, 4u);
  bool has_run = false;
  const auto failed = a.rpc_async("b", kRaise, 0).then([&] { has_run = true; });
  EXPECT_THROW(failed.get(), InvalidArgument);
  EXPECT_FALSE(has_run) << "an error goes past what was to follow";
  EXPECT_THROW(when_all(std::vector{a.rpc_async("b", kRaise, 1), a.rpc_async("b", kRaise, 1)}).get(),
               std::out_of_range);
}

TEST(Agent, ExceptionsKeepTypeAndOrigin) {
  Workers workers({"a", "b"});
  const auto& a = workers["a"];
  EXPECT_THROW(a.rpc_sync("b", kRaise, 0), InvalidArgument);
  EXPECT_THROW(a.rpc_sync("b", kRaise, 1), std::out_of_range);
  EXPECT_THROW(a.rpc_sync("b", kRaise, 2), GameOver);
  EXPECT_EQ(thrown_by([&] { a.rpc_sync("b", kRaise, 2); }), "too late [in 'raise' on worker 'b']");
  try {
    a.rpc_sync("b", kRaise, 3);
    FAIL();
  } catch (const RemoteError& error) {
    EXPECT_NE(error.type().find("Unheard"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("of no family"), std::string::npos);
  }
  EXPECT_THROW(a.rpc_sync("b", kRaise, 4), RemoteError);
  EXPECT_EQ(a.rpc_sync("b", kAdd, 1, 2), 3) << "and calls go on";
}

TEST(Agent, MissingFunctionNamesKnownOnes) {
  Workers workers({"a", "b"});
  const FunctionRow row{.name = "divide", .signature = "", .run = nullptr};
  const Function<void()> unknown(row);
  EXPECT_THROW(workers["a"].rpc_sync("b", unknown), InvalidArgument);
  const std::string message = thrown_by([&] { workers["a"].rpc_sync("b", unknown); });
  EXPECT_NE(message.find("worker 'b' has no function 'divide'; it has: "), std::string::npos) << message;
}

TEST(Agent, RejectsFunctionUnknownToOtherProgram) {
  Workers workers({"a", "b"});
  const FunctionRow row{.name = "ns::divide: double (*)(double)", .signature = "", .run = nullptr};
  const Function<void()> unknown(row);
  const std::string message = thrown_by([&] { workers["a"].rpc_sync("b", unknown); });
  EXPECT_NE(message.find("has to call ns::divide too: build both from one source"), std::string::npos)
      << message;
  EXPECT_EQ(message.find("rpc::function<"), std::string::npos) << message;
}

TEST(Agent, RejectsFunctionOfOtherTypes) {
  Workers workers({"a", "b"});
  const FunctionRow row{.name = "add", .signature = "float (float)", .run = nullptr};
  const Function<float(float)> other(row);
  const std::string message = thrown_by([&] { workers["a"].rpc_sync("b", other, 1); });
  EXPECT_NE(message.find("'add' is double (double, double) on worker 'b'"), std::string::npos) << message;
}

TEST(Agent, TooLargeArgumentsFailCaller) {
  Workers workers({"a", "b"}, {.max_message_bytes = 1 << 20});
  EXPECT_THROW(workers["a"].rpc_sync("b", kLength, std::string(2 << 20, 'x')), InvalidArgument);
  const Everything half{"", std::vector<double>(100'000), {}, {}, {}};
  EXPECT_EQ(workers["a"].rpc_sync("b", kEcho, half), half) << "and less is none";
}

TEST(Agent, PassedDeadlineIsErrorAndCallsContinue) {
  Workers workers({"a", "b"});
  const auto& a = workers["a"];
  answer_to_come = Promise<int>();
  a.rpc_sync("b", kAdd, 1, 2);
  const std::string message =
      thrown_by([&] { a.rpc_sync("b", CallOptions{.timeout_s = 1}, kWaitForAnswer); });
  EXPECT_NE(message.find("'wait_for_answer' on worker 'b' has not answered within 1 s; it has arrived there"),
            std::string::npos)
      << message;
  EXPECT_THROW(a.rpc_sync("b", CallOptions{.timeout_s = 0.05}, kWaitForAnswer), DeadlineError);
  EXPECT_EQ(a.rpc_sync("b", kAdd, 1, 2), 3);
}

TEST(Agent, AbandonedCallDoesNotStart) {
  Workers workers({"a", "b"}, {.num_threads = 1});
  const auto& a = workers["a"];
  num_slow = 0;
  the_only_thread_may_go_on = false;
  const auto first = a.rpc_async("b", kHold);
  EXPECT_THROW(a.rpc_sync("b", CallOptions{.timeout_s = 0.1}, kSlow, 0.0), DeadlineError);
  // When a later message has arrived, the cancellation of the call has arrived, too.
  const auto later = [&] { a.rpc_sync("b", CallOptions{.timeout_s = 0.1}, kAdd, 1, 2); };
  while (thrown_by(later).find("it has arrived there") == std::string::npos) {
  }
  the_only_thread_may_go_on = true;
  the_only_thread_may_go_on.notify_all();
  first.get();
  a.rpc_sync("b", kAdd, 1, 2);
  EXPECT_EQ(num_slow, 0);
}

TEST(Agent, CircularCallsDoNotExhaustThreads) {
  Workers workers({"a", "b"}, {.num_threads = 1});
  EXPECT_EQ(workers["a"].rpc_sync("b", kBounce, 60, "a", "b"), 60);
}

TEST(Agent, DeferredAnswerHoldsNoThread) {
  Workers workers({"a", "b"}, {.num_threads = 1});
  answer_to_come = Promise<int>();
  const auto later = workers["a"].rpc_async("b", kWaitForAnswer);
  EXPECT_EQ(workers["a"].rpc_sync("b", kAdd, 1, 2), 3);
  EXPECT_FALSE(later.is_done());
  answer_to_come.set(42);
  EXPECT_EQ(later.get(), 42);
}

TEST(Agent, DroppedPromiseIsErrorOfCall) {
  Workers workers({"a", "b"}, {.num_threads = 1});  // so that the second call follows the first
  answer_to_come = Promise<int>();
  const auto call = workers["a"].rpc_async("b", kWaitForAnswer);
  workers["a"].rpc_sync("b", kAdd, 1, 2);
  answer_to_come = Promise<int>();
  const std::string message = thrown_by([&] { call.get(); });
  EXPECT_NE(message.find("there will be no answer"), std::string::npos) << message;
}

TEST(Agent, ContinuationOfPendingCallEndsWithAgent) {
  Workers workers({"a", "b"});
  answer_to_come = Promise<int>();
  const auto next = [](int answer) { return answer + 1; };
  const auto late = workers["a"].rpc_async("b", kWaitForAnswer).then(next).then(next);
  workers["a"].rpc_sync("b", kAdd, 1, 2);
  workers.kill("a");
  ASSERT_TRUE(late.wait_for(30));
  EXPECT_THROW(late.get(), CommError);
}

TEST(Agent, WorkerThatEndsDuringCallIsNamed) {
  Workers workers({"a", "b", "c"}, {.lost_after_s = 0.3});
  const auto& a = workers["a"];
  answer_to_come = Promise<int>();
  const auto call = a.rpc_async("b", kWaitForAnswer);
  a.rpc_sync("b", kAdd, 1, 2);
  workers.kill("b");
  EXPECT_THROW(call.get(), CommError);
  const std::string message = thrown_by([&] { call.get(); });
  EXPECT_NE(message.find("'wait_for_answer' was under way: worker 'b' has ended"), std::string::npos)
      << message;
  EXPECT_EQ(a.rpc_sync("c", kAdd, 1, 2), 3);
  EXPECT_THROW(a.rpc_sync("b", CallOptions{.timeout_s = 0.2}, kAdd, 1, 2), CommError);
}

TEST(Agent, RejectsNameOfLiveWorkerOnly) {
  Workers workers({"a", "b"}, {.lost_after_s = 0.3});
  EXPECT_THROW(workers.join("b"), InvalidArgument);
  EXPECT_EQ(workers["a"].rpc_sync("b", kAdd, 1, 2), 3);
  workers.kill("b");
  workers.join("b");
  EXPECT_EQ(workers["a"].rpc_sync("b", CallOptions{.tries = 2}, kAdd, 1, 2), 3)
      << "the name means the new one";
}

TEST(Agent, RepeatableCallIsRetriedOnSuccessor) {
  Workers workers({"a", "b"}, {.num_threads = 1, .lost_after_s = 0.3});
  answer_to_come = Promise<int>();
  const auto call = workers["a"].rpc_async("b", CallOptions{.tries = 2}, kWaitForAnswer);
  const auto once = workers["a"].rpc_async("b", kWaitForAnswer);
  workers["a"].rpc_sync("b", kAdd, 1, 2);
  workers.kill("b");
  answer_to_come = Promise<int>();
  workers.join("b");
  EXPECT_THROW(once.get(), CommError);
  answer_to_come.set(7);
  EXPECT_EQ(call.get(), 7);
  EXPECT_THROW(workers["a"].rpc_sync("b", CallOptions{.tries = 3}, kRaise, 0), InvalidArgument)
      << "what the function throws is its answer";
}

TEST(Agent, RejectsInvalidNamesAndOptions) {
  EXPECT_THROW(Workers({""}), InvalidArgument);
  EXPECT_THROW(Workers({"a b"}), InvalidArgument);
  EXPECT_THROW(Workers({"a"}, {.num_threads = 0}), InvalidArgument);
  EXPECT_THROW(Workers({"a"}, {.shares_memory = false}), InvalidArgument);
  EXPECT_THROW(Agent::join({.name = "a"}), InvalidArgument);
}

TEST(Agent, CallToMissingWorkerTimesOut) {
  Workers workers({"a"}, {.timeout_s = 0.2});
  const std::string message = thrown_by([&] { workers["a"].rpc_sync("z", kAdd, 1, 2); });
  EXPECT_NE(message.find("there is no worker 'z' in the group 'rpc'"), std::string::npos) << message;
}

TEST(Agent, LeaveWaitsForPendingCalls) {
  Workers workers({"a", "b"});
  num_slow = 0;
  const auto call = workers["a"].rpc_async("b", kSlow, 0.2);
  std::thread other([&] { workers["b"].leave(); });
  workers["a"].leave();
  other.join();
  EXPECT_EQ(call.get(), 1);
  EXPECT_THROW(workers["a"].rpc_sync("b", kAdd, 1, 2), CommError) << "nothing may be called afterwards";
}

TEST(Agent, NobodyLeavesBeforeAllHaveCome) {
  Workers workers({"a", "b"});
  std::thread first([&] { workers["b"].leave(); });
  // An agent that does not wait would have left by now.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(workers["a"].rpc_sync("b", kAdd, i, 2), i + 2);
  workers["a"].leave();
  first.join();
}

TEST(Agent, LeavingNamesCallThatDoesNotEnd) {
  Workers workers({"a", "b"});
  answer_to_come = Promise<int>();
  const auto call = workers["a"].rpc_async("b", kWaitForAnswer);
  const std::string message = thrown_by([&] { workers["a"].leave(Agent::Leave::kAlone, 0.2); });
  EXPECT_NE(message.find("such as 'wait_for_answer'"), std::string::npos) << message;
  answer_to_come.set(1);
  EXPECT_EQ(call.get(), 1) << "the agent is as it was";
}

TEST(Agent, LeavingDoesNotWaitForTheDead) {
  Workers workers({"a", "b"}, {.lost_after_s = 0.3});
  workers["a"].rpc_sync("b", kAdd, 1, 2);
  workers.kill("b");
  workers["a"].leave();
}

TEST(Agent, CallerWaitsUnderTooManyCalls) {
  Workers workers({"a", "b"}, {.num_threads = 1, .max_waiting_bytes = 1 << 20});
  const auto& a = workers["a"];
  the_only_thread_may_go_on = false;
  const auto blocker = a.rpc_async("b", kHold);
  const std::string large(600 << 10, 'x');
  const auto first = a.rpc_async("b", kLength, large);
  EXPECT_THROW(a.rpc_async("b", CallOptions{.timeout_s = 0.05}, kLength, large), DeadlineError);
  the_only_thread_may_go_on = true;
  the_only_thread_may_go_on.notify_all();
  const auto second = a.rpc_async("b", kLength, large);
  // The only thread ran the blocker, and then the first call, whose answer made room.
  EXPECT_TRUE(blocker.is_done());
  EXPECT_EQ(first.get(), large.size());
  EXPECT_EQ(second.get(), large.size());
}

TEST(Agent, AgentIsCurrentInServedFunctions) { EXPECT_THROW(this_agent(), InvalidArgument); }

TEST(Agent, StatisticsCountCallsBytesErrorsAndLatencies) {
  Workers workers({"a", "b"});
  for (int i = 0; i < 10; ++i) workers["a"].rpc_sync("b", kLength, std::string(1000, 'x'));
  EXPECT_THROW(workers["a"].rpc_sync("b", kRaise, 0), InvalidArgument);
  const auto made = workers["a"].statistics().made, served = workers["b"].statistics().served;
  EXPECT_EQ(made.at("length").num_calls, 10u);
  EXPECT_GE(made.at("length").bytes_sent, 10'000u);
  EXPECT_EQ(made.at("raise").num_errors, 1u);
  EXPECT_EQ(served.at("length").num_calls, 10u);
  EXPECT_EQ(served.at("length").bytes_received, made.at("length").bytes_sent);
  EXPECT_EQ(served.at("raise").num_errors, 1u);
  EXPECT_GT(made.at("length").latency_s(0.5), 0);
  EXPECT_GE(made.at("length").latency_s(0.99), made.at("length").latency_s(0.5));
}

TEST(Agent, CallsAreSpansOfTheTrace) {
  telemetry::Trace trace;
  trace.begin_step(0);
  {
    Workers workers({"a", "b"}, {.trace = &trace});
    for (int i = 0; i < 3; ++i) workers["a"].rpc_sync("b", kAdd, 1, 2);
    workers["a"].leave(Agent::Leave::kAlone);
  }
  std::map<std::string, int> spans;
  for (const telemetry::TraceBuffer* buffer : trace.buffers()) {
    buffer->for_each([&](const telemetry::TraceSpan& span) {
      EXPECT_LE(span.begin_ns, span.end_ns);
      ++spans[text(span.category, ": ", span.name)];
    });
  }
  EXPECT_EQ(spans["rpc: add"], 3);
  EXPECT_EQ(spans["rpc served: add"], 3);
}

TEST(Agent, CallsUseTcpWithSecret) {
  AgentOptions options;
  options.shares_memory = false;
  options.listen = {"tcp:127.0.0.1:0"};
  options.security = wire::Security::with_secret(wire::Secret::random());
  Workers workers({"a", "b"}, options);
  EXPECT_EQ(workers["a"].rpc_sync("b", kAdd, 1, 2), 3);
  const std::string large(20 << 20, 'x');
  EXPECT_EQ(workers["a"].rpc_sync("b", kLength, large), large.size());
}

TEST(Agent, CallsGoOverTlsToo) {
  const test::TemporaryFolder folder;
  test::Authority authority("rpc", folder.path());
  AgentOptions options;
  options.shares_memory = false;
  options.listen = {"tcp:127.0.0.1:0"};
  options.security = wire::Security::with_tls(authority.issue("a", "DNS:worker.a"));
  Workers workers({"a"}, options);
  workers.options().security = wire::Security::with_tls(authority.issue("b", "DNS:worker.b"));
  workers.join("b");
  EXPECT_EQ(workers["a"].rpc_sync("b", kAdd, 1, 2), 3);
  EXPECT_EQ(workers["b"].rpc_sync("a", kLength, std::string(3 << 20, 'x')), std::size_t{3} << 20);
}

TEST(Agent, CallerWithoutSecretIsRejected) {
  AgentOptions options;
  options.shares_memory = false;
  options.listen = {"tcp:127.0.0.1:0"};
  options.lost_after_s = 0.3;
  options.timeout_s = 5;
  options.security = wire::Security::with_secret(wire::Secret::random());
  Workers workers({"a"}, options);
  workers.options().security = wire::Security::with_secret(wire::Secret::random());
  workers.join("stranger");
  EXPECT_THROW(workers["stranger"].rpc_sync("a", kAdd, 1, 2), CommError);
  EXPECT_TRUE(workers["a"].statistics().served.empty());
}

TEST(Agent, ThreadsOfWorkerCallInParallel) {
  Workers workers({"a", "b"});
  std::vector<std::thread> threads;
  std::atomic<int> num_right = 0;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) num_right += workers["a"].rpc_sync("b", kAdd, t, i) == t + i ? 1 : 0;
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_EQ(num_right, 800);
}

}  // namespace
}  // namespace trireme::rpc
