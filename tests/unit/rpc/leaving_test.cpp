// A worker that leaves together with all others waits for all of them, in any order of joining and leaving.

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "trireme/rpc/agent.h"

namespace trireme::rpc {
namespace {

int twice_of(int number) { return 2 * number; }
constexpr auto& kTwice = function<"twice_of", &twice_of>;
std::atomic<bool> twice_is_under_way = false;
int twice_of_later(int number) {
  twice_is_under_way = true;
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  return 2 * number;
}
constexpr auto& kTwiceLater = function<"twice_of_later", &twice_of_later>;

/// Counts its calls.
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

TEST(AgentLeaving, WaitForOthersRarelyQueriesDirectory) {
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

/// Its first answer about the number of members is older than the last join.
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

/// Two workers whose calls end after 0.3 s.
class AgentLeavingAfterWork : public testing::Test {
 protected:
  std::shared_ptr<Agent> join(const std::string& name, std::size_t num_workers = 2) {
    return Agent::join({.name = name,
                        .directory = directory_,
                        .num_workers = num_workers,
                        .timeout_s = 0.3,
                        .lost_after_s = 0.3});
  }
  const std::shared_ptr<Directory> directory_ = std::make_shared<LocalDirectory>();
};

TEST_F(AgentLeavingAfterWork, WaitsForWorkOfOthersWithoutLimit) {
  const auto serves = join("serves"), works = join("works");
  std::future<void> leaves = std::async(std::launch::async, [&] { serves->leave(); });
  for (int i = 0; i < 10; ++i) {  // four times the timeout of a call
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    ASSERT_EQ(works->rpc_sync("serves", kTwice, i), 2 * i);
  }
  works->leave();
  EXPECT_NO_THROW(leaves.get());
}

TEST_F(AgentLeavingAfterWork, WaitsForServedCallWithoutLimit) {
  const auto serves = join("serves"), works = join("works");
  const auto answer = works->rpc_async("serves", CallOptions{.timeout_s = 30}, kTwiceLater, 21);
  while (!twice_is_under_way) std::this_thread::yield();
  EXPECT_NO_THROW(serves->leave(Agent::Leave::kAlone));
  EXPECT_EQ(answer.get(), 42);
}

TEST_F(AgentLeavingAfterWork, EndsAtADeadlineThatIsGiven) {
  const auto serves = join("serves"), works = join("works");
  EXPECT_THROW(serves->leave(Agent::Leave::kWithAll, 0.2), CommError);
  EXPECT_EQ(works->rpc_sync("serves", kTwice, 4), 8) << "it can be used further";
}

TEST_F(AgentLeavingAfterWork, NoticesDeadWorkerAfterAnyDeadline) {
  const auto serves = join("serves");
  auto dies = join("dies");
  std::future<void> leaves = std::async(std::launch::async, [&] { serves->leave(); });
  EXPECT_EQ(leaves.wait_for(std::chrono::milliseconds(900)), std::future_status::timeout);
  dies.reset();
  EXPECT_NO_THROW(leaves.get());
}

TEST_F(AgentLeavingAfterWork, ErrorCountsWorkersThatHaveNotJoined) {
  const auto serves = join("serves");
  try {
    serves->leave();
    FAIL() << "it left without the other";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("1 that have not joined yet"), std::string::npos)
        << error.what();
  }
}

TEST(AgentLeaving, WaitsForWorkerThatJoinsMeanwhile) {
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
