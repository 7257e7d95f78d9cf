#include "trireme/checkpoint/background_saver.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/support/temporary_folder.h"
#include "tests/unit/checkpoint/elsewhere.h"
#include "tests/unit/checkpoint/latest.h"
#include "trireme/base/error.h"

namespace trireme::checkpoint {
namespace {

using test::TemporaryFolder;
using testing::HasSubstr;

constexpr std::int64_t kNumbers = 1 << 20;

class BackgroundSaverTest : public testing::Test {
 protected:
  /// The second of two writers has the momentum.
  CheckpointPart part(std::int64_t step, int number = 0, int num_parts = 1) {
    CheckpointPart result;
    result.head = {.step = step, .config = "x"};
    result.attempt = {.num_parts = num_parts, .name = text("run-", step), .prefix = "run"};
    result.number = number;
    if (number == 0) result.shards.push_back(whole_shard("weight", weight_));
    if (number + 1 == num_parts) result.shards.push_back(whole_shard("optimizer/momentum", momentum_));
    return result;
  }
  void train(double value) {
    weight_.fill_(value);
    momentum_.fill_(-value);
  }
  static double weight_in(const std::filesystem::path& folder) {
    const auto found = load_latest(folder);
    EXPECT_TRUE(found.has_value());
    const at::Tensor& weight = found->model.at("weight");
    EXPECT_TRUE(weight.equal(at::full({kNumbers}, weight[0].item<double>()))) << "of one moment";
    EXPECT_TRUE(found->optimizer.at("momentum").equal(-weight));
    return weight[0].item<double>();
  }

  std::int64_t step_of_latest(const std::string& folder) const {
    const auto found = load_latest(folder_ / folder);
    return found ? found->step : 0;
  }
  std::vector<std::string> names_in(const std::string& folder) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / folder))
      names.push_back(entry.path().filename().string());
    return names;
  }

  const TemporaryFolder folder_;
  at::Tensor weight_ = at::full({kNumbers}, 1.0), momentum_ = at::full({kNumbers}, -1.0);
};

TEST_F(BackgroundSaverTest, SavesTensorsAsHandedOver) {
  BackgroundSaver saver;
  for (int step = 1; step <= 5; ++step) {
    train(step);
    saver.save(part(step), {{folder_ / "a", 2}});
    saver.wait_until_copied();
    train(1000);  // the next update
    saver.wait();
    EXPECT_EQ(weight_in(folder_ / "a"), step);
  }
  EXPECT_EQ(list_checkpoints(folder_ / "a").size(), 2u);
  EXPECT_GT(saver.stalled_s(), 0);
}

TEST_F(BackgroundSaverTest, DeviceTensorsAreCopiedBeforeTheyChange) {
  BackgroundSaver saver;
  const auto store = std::make_shared<AwayStore>();
  for (int step = 1; step <= 3; ++step) {
    train(step);
    CheckpointPart handed_over = part(step);
    Shard& momentum = handed_over.shards.back();
    momentum = store->take(momentum);
    const at::Tensor holder = momentum.tensor;
    saver.save(handed_over, {{folder_ / "a", 2}, {folder_ / "b", 1}});
    saver.wait_until_copied();
    train(1000);  // the next update
    store->values_of(holder).fill_(1000);
    saver.wait();
    EXPECT_EQ(weight_in(folder_ / "a"), step);
    EXPECT_EQ(weight_in(folder_ / "b"), step);
  }
}

TEST_F(BackgroundSaverTest, OneCopyServesSeveralFolders) {
  BackgroundSaver saver;
  saver.save(part(7), {{folder_ / "a", 2}, {folder_ / "best", 1}});
  saver.wait_until_copied();
  train(1000);
  saver.wait();
  EXPECT_EQ(weight_in(folder_ / "a"), 1);
  EXPECT_EQ(weight_in(folder_ / "best"), 1);
}

TEST_F(BackgroundSaverTest, DestructorAwaitsPendingWrite) {
  {
    BackgroundSaver saver;
    saver.save(part(3), {{folder_ / "a", 1}});
  }
  EXPECT_EQ(weight_in(folder_ / "a"), 1);
}

TEST_F(BackgroundSaverTest, FailedWriteIsReportedOnce) {
  BackgroundSaver saver;
  saver.save(part(1), {{"/proc/no/such/place", 1}});
  try {
    saver.wait();
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("/proc/no"));
  }
  saver.check();
  saver.save(part(2), {{folder_ / "a", 1}});
  saver.wait();
  EXPECT_EQ(weight_in(folder_ / "a"), 1);
}

TEST_F(BackgroundSaverTest, CheckReportsFailureWithoutWait) {
  BackgroundSaver saver;
  saver.save(part(1), {{"/proc/no/such/place", 1}});
  saver.wait_until_copied();
  const auto told = [&] {
    try {
      saver.check();
    } catch (const DataError&) {
      return true;
    }
    return false;
  };
  bool found = false;
  for (int i = 0; i < 20000 && !found; ++i) {
    found = told();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  EXPECT_TRUE(found);
}

TEST_F(BackgroundSaverTest, CopiesNonContiguousTensors) {
  BackgroundSaver saver;
  const at::Tensor square = at::full({4, 6}, 2.0);
  square[0].fill_(3);
  CheckpointPart of_transposed = part(1);
  of_transposed.shards.push_back(whole_shard("transposed", square.t()));
  saver.save(of_transposed, {{folder_ / "a", 1}});
  saver.wait();
  EXPECT_TRUE(load_latest(folder_ / "a")->model.at("transposed").equal(square.t()));
}

TEST_F(BackgroundSaverTest, FirstWriterMakesOneCheckpoint) {
  BackgroundSaver first, second;
  for (int step = 1; step <= 3; ++step) {
    train(step);
    first.save(part(step, 0, 2), {{folder_ / "a", 1}, {folder_ / "best", 1}});
    first.wait_until_written();
    EXPECT_EQ(step_of_latest("a"), step - 1) << "the second part is missing";
    second.save(part(step, 1, 2), {{folder_ / "a", 1}, {folder_ / "best", 1}});
    second.wait_until_written();
    first.wait();
    EXPECT_EQ(step_of_latest("a"), step);
    EXPECT_EQ(weight_in(folder_ / "a"), step);
    EXPECT_EQ(weight_in(folder_ / "best"), step);
  }
}

TEST_F(BackgroundSaverTest, BothWritersReportFailedPart) {
  BackgroundSaver first, second;
  const std::vector<BackgroundSaver::Destination> here = {{folder_ / "a", 1}};
  first.save(part(1, 0, 2), here);
  second.save(part(1, 1, 2), here);
  first.wait();
  second.wait();
  CheckpointPart bad = part(2, 1, 2);
  bad.shards[0].tensor = at::zeros({2}, at::kComplexDouble);  // no file format supports it
  first.save(part(2, 0, 2), here);
  second.save(bad, here);
  EXPECT_THROW(second.wait(), InvalidArgument);
  try {
    first.wait();
    ADD_FAILURE() << "no error";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot be saved"));
  }
  EXPECT_EQ(step_of_latest("a"), 1);
  EXPECT_THAT(names_in("a"), testing::ElementsAre("step-00000001")) << "nothing half done is left";
  first.save(part(3, 0, 2), here);
  second.save(part(3, 1, 2), here);
  first.wait();
  EXPECT_EQ(step_of_latest("a"), 3);
}

TEST_F(BackgroundSaverTest, EndDoesNotAwaitLostWriter) {
  {
    BackgroundSaver saver;
    saver.save(part(1), {{folder_ / "a", 1}});
    saver.wait();
    saver.save(part(2, 0, 2), {{folder_ / "a", 1}});
    saver.wait_until_written();
  }
  EXPECT_EQ(step_of_latest("a"), 1);
  EXPECT_THAT(names_in("a"), testing::ElementsAre("step-00000001"));
}

}  // namespace
}  // namespace trireme::checkpoint
