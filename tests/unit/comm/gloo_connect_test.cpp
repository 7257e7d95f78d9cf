// The connection of ranks with gloo when a connection is lost meanwhile.

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/comm/internal/backend_table.h"

namespace trireme::comm {
namespace {

using testing::HasSubstr;

/// A store that fails this rank in its first attempts. Its messages do not arrive, as with lost connections.
class FailingStore : public c10d::PrefixStore {
 public:
  FailingStore(c10::intrusive_ptr<c10d::Store> store, int attempts)
      : c10d::PrefixStore("group", std::move(store)), attempts_(attempts) {}
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    for (int number = 1; number <= attempts_; ++number) {
      if (key.starts_with("attempt-" + std::to_string(number)) && key.find("connected/") == std::string::npos)
        throw std::runtime_error("connection closed by peer");
    }
    c10d::PrefixStore::set(key, value);
  }

 private:
  int attempts_;
};

/// A store whose reader gets the addresses of other ranks only when these have given up, or after 15 s.
class LateStore : public c10d::PrefixStore {
 public:
  LateStore(c10::intrusive_ptr<c10d::Store> store, std::future<void>& given_up)
      : c10d::PrefixStore("group", std::move(store)), given_up_(given_up) {}
  std::vector<std::uint8_t> get(const std::string& key) override {
    if (given_up_.valid()) {
      was_in_time_ = given_up_.wait_for(std::chrono::seconds(15)) == std::future_status::ready;
      given_up_ = {};
    }
    return c10d::PrefixStore::get(key);
  }
  bool was_in_time() const { return was_in_time_; }

 private:
  std::future<void>& given_up_;
  bool was_in_time_ = false;
};

BackendRequest request_of(int rank, c10::intrusive_ptr<c10d::Store> store) {
  return {.store = std::move(store),
          .rank = rank,
          .size = 3,
          .group_name = "world",
          .world_ranks = {0, 1, 7},
          .host_ids = {"a", "a", "a"},
          .interface_addr = "127.0.0.1",
          .timeout_s = 2,
          .operation_timeout_s = 20};
}

/// Empty if nothing is thrown.
std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

/// The exception of each of the first `come` of 3 ranks when rank 1's first attempts fail. Empty: it has
/// connected, and its sum is right.
std::vector<std::string> connect_with_failures(int attempts, int come = 3) {
  const auto shared = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> errors(static_cast<std::size_t>(come));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < come; ++rank) {
    ranks.emplace_back([&, rank] {
      errors[static_cast<std::size_t>(rank)] = error_of([&] {
        const auto backend = make_gloo_backend(
            request_of(rank, c10::make_intrusive<FailingStore>(shared, rank == 1 ? attempts : 0)));
        std::vector<at::Tensor> ones{at::ones({4})};
        backend->allreduce(ones)->wait();
        require(ones[0][3].item<float>() == 3, "a wrong sum");
      });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return errors;
}

TEST(GlooConnect, AllRanksRetryAfterLostConnection) {
  for (const std::string& error : connect_with_failures(1)) EXPECT_EQ(error, "");
}

TEST(GlooConnect, UnconnectedRankIsErrorOnAllRanks) {
  const std::vector<std::string> errors = connect_with_failures(9);
  for (const std::string& error : errors)
    EXPECT_THAT(error, HasSubstr("could not connect group 'world' with gloo"));
  EXPECT_THAT(errors[1], HasSubstr("connection closed by peer"));
}

TEST(GlooConnect, NamesRanksThatDoNotCome) {
  for (const std::string& error : connect_with_failures(0, 2))
    EXPECT_THAT(error, HasSubstr("within 2.0 s: rank 7 did not come ("));
}

/// gloo itself waits five times as long for a connection.
TEST(GlooConnect, LateRankIsErrorByTheDeadline) {
  const auto shared = c10::make_intrusive<c10d::HashStore>();
  std::promise<void> given_up;
  std::future<void> others = given_up.get_future();
  const auto late = c10::make_intrusive<LateStore>(shared, others);
  const auto connect = [](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
    BackendRequest request = request_of(rank, store);
    request.timeout_s = 4;
    return error_of([&] { make_gloo_backend(request); });
  };
  std::vector<std::string> errors(2);
  std::thread first([&] { errors[0] = connect(0, c10::make_intrusive<FailingStore>(shared, 0)); });
  std::thread last([&] { errors[1] = connect(2, c10::make_intrusive<FailingStore>(shared, 0)); });
  std::thread stopped([&] { connect(1, late); });
  first.join();
  last.join();
  given_up.set_value();
  stopped.join();
  EXPECT_TRUE(late->was_in_time());
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("could not connect group 'world'"));
}

}  // namespace
}  // namespace trireme::comm
