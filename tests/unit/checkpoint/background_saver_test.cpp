#include "trireme/checkpoint/background_saver.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"

namespace trireme::checkpoint {
namespace {

using test::TemporaryFolder;
using testing::HasSubstr;

constexpr std::int64_t kNumbers = 1 << 20;

class BackgroundSaverTest : public testing::Test {
 protected:
  TrainingCheckpoint checkpoint(std::int64_t step) {
    return {
        .step = step, .model = {{"weight", weight_}}, .optimizer = {{"momentum", momentum_}}, .config = "x"};
  }
  void train(double value) {
    weight_.fill_(value);
    momentum_.fill_(-value);
  }
  static double weight_in(const std::filesystem::path& folder) {
    const auto found = load_latest_checkpoint(folder, Log());
    EXPECT_TRUE(found.has_value());
    const at::Tensor& weight = found->model.at("weight");
    EXPECT_TRUE(weight.equal(at::full({kNumbers}, weight[0].item<double>()))) << "of one moment";
    EXPECT_TRUE(found->optimizer.at("momentum").equal(-weight));
    return weight[0].item<double>();
  }

  const TemporaryFolder folder_;
  at::Tensor weight_ = at::full({kNumbers}, 1.0), momentum_ = at::full({kNumbers}, -1.0);
};

TEST_F(BackgroundSaverTest, SavesTheTensorsAsTheyWereWhenTheyWereHandedOver) {
  BackgroundSaver saver;
  for (int step = 1; step <= 5; ++step) {
    train(step);
    saver.save(checkpoint(step), {{folder_ / "a", 2}});
    saver.wait_until_copied();
    train(1000);  // the next update
    saver.wait();
    EXPECT_EQ(weight_in(folder_ / "a"), step);
  }
  EXPECT_EQ(list_checkpoints(folder_ / "a").size(), 2u);
  EXPECT_GT(saver.stalled_s(), 0);
}

TEST_F(BackgroundSaverTest, OneCopyServesSeveralFolders) {
  BackgroundSaver saver;
  saver.save(checkpoint(7), {{folder_ / "a", 2}, {folder_ / "best", 1}});
  saver.wait_until_copied();
  train(1000);
  saver.wait();
  EXPECT_EQ(weight_in(folder_ / "a"), 1);
  EXPECT_EQ(weight_in(folder_ / "best"), 1);
}

TEST_F(BackgroundSaverTest, EndOfTheSaverWaitsForTheWriteInHand) {
  {
    BackgroundSaver saver;
    saver.save(checkpoint(3), {{folder_ / "a", 1}});
  }
  EXPECT_EQ(weight_in(folder_ / "a"), 1);
}

TEST_F(BackgroundSaverTest, FailedWriteIsToldOnceAndTheNextOneWorks) {
  BackgroundSaver saver;
  saver.save(checkpoint(1), {{"/proc/no/such/place", 1}});
  try {
    saver.wait();
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("/proc/no"));
  }
  saver.check();
  saver.save(checkpoint(2), {{folder_ / "a", 1}});
  saver.wait();
  EXPECT_EQ(weight_in(folder_ / "a"), 1);
}

TEST_F(BackgroundSaverTest, CheckTellsOfAFailureWithoutBeingWaitedFor) {
  BackgroundSaver saver;
  saver.save(checkpoint(1), {{"/proc/no/such/place", 1}});
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

TEST_F(BackgroundSaverTest, CopiesWhatDoesNotLieFlat) {
  BackgroundSaver saver;
  const at::Tensor square = at::full({4, 6}, 2.0);
  square[0].fill_(3);
  TrainingCheckpoint of_transposed = checkpoint(1);
  of_transposed.model.emplace("transposed", square.t());
  saver.save(of_transposed, {{folder_ / "a", 1}});
  saver.wait();
  EXPECT_TRUE(load_latest_checkpoint(folder_ / "a", Log())->model.at("transposed").equal(square.t()));
}

}  // namespace
}  // namespace trireme::checkpoint
