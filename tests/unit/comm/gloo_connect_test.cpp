// The connection of ranks with gloo when a connection is lost meanwhile.

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

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

/// The exception of each of the first `come` of 3 ranks when rank 1's first attempts fail. Empty: it has
/// connected, and its sum is right.
std::vector<std::string> connect_with_failures(int attempts, int come = 3) {
  const auto shared = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> errors(static_cast<std::size_t>(come));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < come; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        const auto backend =
            make_gloo_backend({.store = c10::make_intrusive<FailingStore>(shared, rank == 1 ? attempts : 0),
                               .rank = rank,
                               .size = 3,
                               .group_name = "world",
                               .world_ranks = {0, 1, 7},
                               .host_ids = {"a", "a", "a"},
                               .interface_addr = "127.0.0.1",
                               .timeout_s = 2,
                               .operation_timeout_s = 20});
        std::vector<at::Tensor> ones{at::ones({4})};
        backend->allreduce(ones)->wait();
        if (ones[0][3].item<float>() != 3) errors[static_cast<std::size_t>(rank)] = "a wrong sum";
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
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

}  // namespace
}  // namespace trireme::comm
