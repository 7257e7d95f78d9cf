// Tensors of more than 1 MiB in one chunk, because their optimizer needs the whole tensor.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "tests/unit/ps/real_cluster.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/ps/client.h"

namespace trireme::ps {
namespace {

constexpr std::uint32_t kWholeElements = 2'000'003;

TableSpec lamb_layer() {
  TableSpec spec;
  spec.name = "layer";
  spec.num_elements = spec.chunk_elements = kWholeElements;
  spec.staleness = kAsynchronous;
  spec.optimizer = {.name = "lamb", .lr = 0.01, .weight_decay = 0.1};
  spec.initial_range = 0.1F;
  return spec;
}

std::vector<float> lamb_gradient(std::uint64_t step) {
  Random random(3, step);
  std::vector<float> values(kWholeElements);
  for (float& value : values) value = random.uniform() - 0.5F;
  return values;
}

/// The layer in one process.
class LambAlone {
 public:
  LambAlone() : values_(kWholeElements), state_(state_elements(lamb_layer(), kWholeElements)) {
    for (std::uint32_t i = 0; i < kWholeElements; ++i) values_[i] = initial_value(lamb_layer(), 0, i);
  }
  const std::vector<float>& after(std::uint64_t step) {
    const std::vector<float> pushed = lamb_gradient(step);
    optimizer_rule("lamb").update(with_defaults(lamb_layer().optimizer),
                                  {.values = values_, .gradient = pushed, .state = state_, .step = step});
    return values_;
  }

 private:
  std::vector<float> values_, state_;
};

ClientOptions lamb_worker(const RealCluster& cluster) {
  return {.worker = 0, .host = "here", .coordinator = cluster.address()};
}

/// Waits until there are two copies of everything, without other reports for a while. A slow copy under load
/// may be dropped and made again, and this worker gets that report a little later.
void wait_for_second_copies(const Client& client, std::ptrdiff_t num_down) {
  constexpr int kLooks = 100;
  const Deadline deadline = Deadline::after_s(60);  // ends a test that would hang
  const auto is_whole = [](const PartitionEntry& entry) {
    return entry.chain.size() == 2 && entry.learner == kNoServer;
  };
  for (int num_whole = 0; num_whole < kLooks; ++num_whole) {
    ASSERT_FALSE(deadline.expired());
    const ClusterMap map = client.map();
    const auto down = std::count_if(map.servers.begin(), map.servers.end(),
                                    [](const auto& each) { return !each.second.may_hold(); });
    if (down != num_down || !std::all_of(map.partitions.begin(), map.partitions.end(), is_whole))
      num_whole = -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TEST(WholeTensors, RunLambOverCopyFailureAndCheckpoint) {
  const test::TemporaryFolder folder;
  LambAlone alone;
  std::vector<float> values(kWholeElements);
  {
    RealCluster cluster(2);
    Client client(lamb_worker(cluster));
    const TableId table = client.open_table(lamb_layer());
    client.push_pull(table, lamb_gradient(1), values).get();
    EXPECT_TRUE(values == alone.after(1));
    ASSERT_NO_FATAL_FAILURE(wait_for_second_copies(client, 0));
    cluster.end_server(0);
    cluster.add_server(2);
    ASSERT_NO_FATAL_FAILURE(wait_for_second_copies(client, 1));
    cluster.end_server(1);  // the remaining partitions were copied
    client.push_pull(table, lamb_gradient(2), values).get();
    EXPECT_TRUE(values == alone.after(2));
    client.checkpoint(folder.path());
  }
  RealCluster cluster(1);
  Client client(lamb_worker(cluster));
  client.restore(folder.path());
  client.push_pull(client.map().table("layer")->id, lamb_gradient(3), values).get();
  EXPECT_TRUE(values == alone.after(3));
}

TEST(WholeTensors, AreRejectedWhenCutOrTooLarge) {
  const auto rejection = [](const std::function<void(TableSpec&)>& change) -> std::string {
    TableSpec spec = lamb_layer();
    change(spec);
    try {
      check(spec);
      return "taken";
    } catch (const InvalidArgument& error) {
      return error.what();
    }
  };
  EXPECT_EQ(rejection([](TableSpec& spec) { spec.num_elements = spec.chunk_elements = 2 << 20; }), "taken");
  EXPECT_THAT(rejection([](TableSpec& spec) { spec.chunk_elements = 256 << 10; }),
              testing::HasSubstr("cut into 8 chunks: give each tensor a table of at most 2097152 elements, "
                                 "and set chunk_elements to as many"));
  EXPECT_THAT(rejection([](TableSpec& spec) { spec.num_elements = spec.chunk_elements = (2 << 20) + 1; }),
              testing::HasSubstr("chunk_elements must be 1 to 2097152, not 2097153"));
  EXPECT_THAT(rejection([](TableSpec& spec) { spec.optimizer.name = "adam"; }),
              testing::HasSubstr("chunk_elements must be 1 to 262144, not 2000003"));
}

}  // namespace
}  // namespace trireme::ps
