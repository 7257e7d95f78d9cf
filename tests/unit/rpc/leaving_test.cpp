// Who leaves with all others waits for all of them, however they come and go.

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "trireme/rpc/agent.h"

namespace trireme::rpc {
namespace {

int twice_of(int number) { return 2 * number; }
constexpr auto& kTwice = function<"twice_of", &twice_of>;

/// Counts what it is asked for.
class CountingDirectory final : public Directory {
 public:
  std::int64_t add(const std::string& key, std::int64_t number) override {
    ++num_asked;
    return directory_.add(key, number);
  }
  void set(const std::string& key, const std::string& value) override { directory_.set(key, value); }
  std::optional<std::string> get(const std::string& key) override {
    ++num_asked;
    return directory_.get(key);
  }
  std::string replace(const std::string& key, const std::string& expected,
                      const std::string& value) override {
    return directory_.replace(key, expected, value);
  }
  std::atomic<int> num_asked = 0;

 private:
  LocalDirectory directory_;
};

TEST(AgentLeaving, WhoWaitsForTheOthersToLeaveIsToldAndAsksTheDirectoryLittle) {
  const auto directory = std::make_shared<CountingDirectory>();
  std::vector<std::shared_ptr<Agent>> agents;
  for (const std::string name : {"a", "b", "c", "d"}) {
    agents.push_back(Agent::join({.name = name, .directory = directory, .num_workers = 4}));
  }
  std::vector<std::thread> threads;
  directory->num_asked = 0;
  for (int i = 0; i < 3; ++i) threads.emplace_back([&, i] { agents[i]->leave(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(800));
  EXPECT_LE(directory->num_asked, 100);
  agents[3]->leave();
  for (auto& each : threads) each.join();
}

/// The first look at how many have joined was before the last one did.
class DirectoryOfEarlier final : public Directory {
 public:
  DirectoryOfEarlier(std::shared_ptr<Directory> now, std::int64_t earlier)
      : now_(std::move(now)), earlier_(earlier) {}
  std::int64_t add(const std::string& key, std::int64_t number) override {
    const std::int64_t sum = now_->add(key, number);
    return number == 0 ? std::exchange(earlier_, sum) : sum;
  }
  void set(const std::string& key, const std::string& value) override { now_->set(key, value); }
  std::optional<std::string> get(const std::string& key) override { return now_->get(key); }
  std::string replace(const std::string& key, const std::string& expected,
                      const std::string& value) override {
    return now_->replace(key, expected, value);
  }

 private:
  const std::shared_ptr<Directory> now_;
  std::int64_t earlier_;
};

TEST(AgentLeaving, WaitsForAWorkerThatJoinsWhileTheOthersAreLookedAt) {
  const auto directory = std::make_shared<LocalDirectory>();
  const auto join = [](const std::string& name, std::shared_ptr<Directory> where) {
    return Agent::join({.name = name, .directory = std::move(where), .num_workers = 3});
  };
  const auto looks = join("a", std::make_shared<DirectoryOfEarlier>(directory, 2));
  const auto done = join("b", directory), works = join("c", directory);
  std::future<void> waits = std::async(std::launch::async, [&] { done->leave(); });
  while (!directory->get("rpc/done/2")) std::this_thread::yield();
  std::future<void> leaves = std::async(std::launch::async, [&] { looks->leave(); });
  EXPECT_EQ(leaves.wait_for(std::chrono::milliseconds(500)), std::future_status::timeout);
  EXPECT_EQ(works->rpc_sync("a", kTwice, 3), 6) << "it is still there";
  works->leave();
  leaves.get();
  waits.get();
}

}  // namespace
}  // namespace trireme::rpc
