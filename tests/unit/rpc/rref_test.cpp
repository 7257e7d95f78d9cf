// Values that stay on their worker, and references to them, over real sockets.

#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/rpc/workers.h"

namespace trireme::rpc {
namespace {

using test::thrown_by;
using test::Workers;

class Counter {
 public:
  explicit Counter(int start) : value_(start) { ++num_alive; }
  ~Counter() { --num_alive; }
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;
  int add(int more) { return value_ += more; }
  int value() const { return value_; }
  static inline std::atomic<int> num_alive = 0;

 private:
  std::atomic<int> value_;
};

std::shared_ptr<Counter> make_counter(int start) {
  if (start < 0) throw InvalidArgument("a counter begins at zero or above");
  return std::make_shared<Counter>(start);
}
constexpr auto& kMake = function<"make_counter", &make_counter>;
constexpr auto& kCount = function<"Counter.add", &Counter::add>;
constexpr auto& kValue = function<"Counter.value", &Counter::value>;

std::string repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}
constexpr auto& kRepeat = function<"repeat", &repeat>;

/// Calls a third worker with a reference that a second one passed on.
int add_there(const RRef<Counter>& counter, int more) {
  return this_agent()->rpc_sync(counter.owner(), kCount, counter, more);
}
constexpr auto& kAddThere = function<"add_there", &add_there>;
std::vector<RRef<Counter>> kept;
void keep(const std::vector<RRef<Counter>>& counters) { kept = counters; }
constexpr auto& kKeep = function<"keep", &keep>;
RRef<Counter> give_back() { return kept.at(0); }
constexpr auto& kGiveBack = function<"give_back", &give_back>;
RRef<Counter> make_for_caller(const std::string& where) { return this_agent()->remote(where, kMake, 5); }
constexpr auto& kMakeForCaller = function<"make_for_caller", &make_for_caller>;

void wait_until_none_is_alive(Workers& workers, const std::vector<std::string>& names) {
  for (int i = 0; i < 2000; ++i) {
    std::size_t values = 0;
    for (const auto& name : names) values += workers[name].num_values();
    if (values == 0 && Counter::num_alive == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  FAIL() << Counter::num_alive << " values are still there";
}

TEST(RRef, RemoteObjectLivesUntilLastReference) {
  Workers workers({"a", "b"});
  {
    const auto counter = workers["a"].remote("b", kMake, 10);
    EXPECT_EQ(workers["a"].rpc_sync(counter.owner(), kCount, counter, 5), 15);
    EXPECT_EQ(workers["a"].rpc_sync("b", kValue, counter), 15);
    EXPECT_EQ(Counter::num_alive, 1);
  }
  wait_until_none_is_alive(workers, {"a", "b"});
}

TEST(RRef, AFunctionIsItsOwnName) {
  Workers workers({"a", "b"});
  {
    const RRef<Counter> counter = workers["a"].remote<&make_counter>("b", 10);
    EXPECT_EQ(counter.rpc_sync<&Counter::add>(5), 15);
    EXPECT_EQ(counter.rpc_async<&Counter::add>({.timeout_s = 60}, 1).get(), 16);
    EXPECT_EQ(counter.remote<&Counter::value>().to_here(), 16);
    EXPECT_EQ(counter.rpc_sync<&add_there>({.timeout_s = 60}, 4), 20) << "the reference comes first";
    EXPECT_EQ(workers["a"].rpc_sync<&repeat>("b", "ab", 2), "abab");
    EXPECT_EQ(workers["a"].rpc_async<&repeat>("b", {.timeout_s = 60}, "c", 3).get(), "ccc");
  }
  EXPECT_NE(thrown_by([&] {
              workers["a"].remote<&make_counter>("b", -1).rpc_sync<&Counter::value>();
            }).find("a counter begins at zero"),
            std::string::npos);
  wait_until_none_is_alive(workers, {"a", "b"});
}

int twice(int number) { return 2 * number; }
std::string twice(const std::string& text) { return text + text; }

TEST(RRef, OverloadsAreDifferentFunctions) {
  Workers workers({"a", "b"});
  constexpr auto kNumbers = static_cast<int (*)(int)>(&twice);
  constexpr auto kTexts = static_cast<std::string (*)(const std::string&)>(&twice);
  EXPECT_EQ(workers["a"].rpc_sync<kNumbers>("b", 4), 8);
  EXPECT_EQ(workers["a"].rpc_sync<kTexts>("b", "ab"), "abab");
  EXPECT_EQ(internal::name_of<kNumbers>(), "trireme::rpc::(anonymous namespace)::twice: int (*)(int)");
}

TEST(RRef, AValueIsCopiedHere) {
  Workers workers({"a", "b"});
  EXPECT_EQ(workers["a"].remote("b", kRepeat, "ab", 3).to_here(), "ababab");
  EXPECT_EQ(workers["a"].remote("a", kRepeat, "ab", 2).to_here(), "abab") << "also from the worker itself";
}

TEST(RRef, EveryUseThrowsExceptionOfFunction) {
  Workers workers({"a", "b"});
  const auto counter = workers["a"].remote("b", kMake, -1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(workers["a"].rpc_sync("b", kValue, counter), InvalidArgument);
  }
}

TEST(RRef, ReferenceIsPassedOnAndOutlivesSource) {
  Workers workers({"a", "b", "c"});
  {
    auto counter = workers["a"].remote("b", kMake, 1);
    EXPECT_EQ(workers["a"].rpc_sync("c", kAddThere, counter, 2), 3);
    workers["a"].rpc_sync("c", kKeep, std::vector{counter, counter});
    counter = {};
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(Counter::num_alive, 1);
    auto back = workers["a"].rpc_sync("c", kGiveBack);
    EXPECT_EQ(workers["a"].rpc_sync("b", kValue, back), 3);
    EXPECT_EQ(workers["b"].rpc_sync("c", kGiveBack).local_value()->value(), 3)
        << "on its owner, it is the value";
    kept.clear();
  }
  wait_until_none_is_alive(workers, {"a", "b", "c"});
}

TEST(RRef, ReferenceForAnotherMayPrecedeItsValue) {
  Workers workers({"a", "b", "c"});
  for (int i = 0; i < 50; ++i) {
    const auto counter = workers["a"].rpc_sync("b", kMakeForCaller, "c");
    EXPECT_EQ(workers["a"].rpc_sync(counter.owner(), kCount, counter, 1), 6);
  }
  wait_until_none_is_alive(workers, {"a", "b", "c"});
}

TEST(RRef, AValueOfThisWorkerIsShared) {
  Workers workers({"a", "b"});
  {
    const auto counter = workers["a"].share(std::make_shared<Counter>(3));
    EXPECT_TRUE(counter.is_owner());
    EXPECT_EQ(workers["a"].rpc_sync("b", kAddThere, counter, 4), 7);
    EXPECT_EQ(counter.local_value()->value(), 7);
    EXPECT_EQ(workers["b"].rpc_sync("a", kRepeat, "x", 2), "xx");
  }
  EXPECT_THROW(workers["a"].share(std::shared_ptr<Counter>()), InvalidArgument);
  wait_until_none_is_alive(workers, {"a", "b"});
}

TEST(RRef, RejectsRemoteValueAndForeignReference) {
  Workers workers({"a", "b"});
  const auto counter = workers["a"].remote("b", kMake, 1);
  const std::string message = thrown_by([&] { counter.local_value(); });
  EXPECT_NE(message.find("on worker 'b', not here"), std::string::npos) << message;
  EXPECT_THROW(workers["b"].rpc_sync("a", kValue, counter), InvalidArgument) << "it is worker a's";
  EXPECT_THROW(workers["a"].rpc_sync("b", kValue, RRef<Counter>()), InvalidArgument)
      << "it refers to nothing";
}

TEST(RRef, DeadOwnerIsErrorWithItsName) {
  Workers workers({"a", "b"}, {.lost_after_s = 0.3});
  const auto counter = workers["a"].remote("b", kMake, 1);
  EXPECT_EQ(workers["a"].rpc_sync("b", kValue, counter), 1);
  workers.kill("b");
  const std::string message = thrown_by(
      [&] { workers["a"].rpc_sync(counter.owner(), CallOptions{.timeout_s = 5}, kValue, counter); });
  EXPECT_NE(message.find("worker 'b' has ended"), std::string::npos) << message;
}

TEST(RRef, ReferencesOfALostWorkerAreReleased) {
  Workers workers({"a", "b", "c"}, {.lost_after_s = 0.3});
  const auto made = workers["a"].remote("b", kMake, 1);
  workers["a"].rpc_sync("b", kValue, made);
  workers["a"].rpc_sync("c", kKeep, std::vector{made});
  EXPECT_EQ(Counter::num_alive, 1);
  // A killed process drops nothing, so the agents are destroyed before their references.
  workers.kill("c");
  EXPECT_EQ(workers["a"].rpc_sync("b", kValue, made), 1);
  workers.kill("a");
  wait_until_none_is_alive(workers, {"b"});
  kept.clear();
}

TEST(RRef, ManyThreadsCreatePassAndDropReferences) {
  Workers workers({"a", "b", "c", "d"});
  std::vector<std::thread> threads;
  std::atomic<int> num_right = 0;
  const std::vector<std::string> names = {"a", "b", "c", "d"};
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 200; ++i) {
        const auto counter = workers[names[t]].remote(names[i % 4], kMake, 1);
        num_right += workers[names[t]].rpc_sync(names[(i + t) % 4], kAddThere, counter, 1) == 2 ? 1 : 0;
      }
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_EQ(num_right, 800);
  wait_until_none_is_alive(workers, names);
}

}  // namespace
}  // namespace trireme::rpc
