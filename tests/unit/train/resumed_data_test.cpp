// A run resumes with the data of its checkpoint, or is rejected.

#include <gmock/gmock.h>

#include <filesystem>

#include "tests/unit/train/small_runs.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/data/synthetic_dataset.h"
#include "trireme/train/run/internal/data_record.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class ResumedData : public SmallRuns {
 protected:
  void write_rows(const std::string& name, int rows, const std::string& second = "0.5") const {
    std::string content = "x,y,class\n";
    for (int i = 0; i < rows; ++i) content += text("0.", i, ",", second, ",", i % 2, "\n");
    write_file_atomic(folder_ / name, content);
  }
  RunConfig over_rows() const {
    RunConfig result = config("rows");
    result.data = {.name = "csv", .path = (folder_ / "data.csv").string()};
    result.train = {.epochs = 3, .max_steps = 4, .global_batch = 4};
    result.checkpoint.every_steps = 1;
    return result;
  }
  std::string refusal(const RunConfig& config) const {
    try {
      run(1, config, RunStart::kResume);
    } catch (const DataError& error) {
      return error.what();
    }
    return "none";
  }
};

TEST_F(ResumedData, RejectChangedDataButAcceptCopy) {
  write_rows("data.csv", 40);
  RunConfig config = over_rows();
  run(1, config);
  config.train.max_steps = 6;
  write_rows("data.csv", 140);
  EXPECT_THAT(refusal(config),
              AllOf(HasSubstr("training data of data set 'csv' are not those of the checkpoint"),
                    HasSubstr("36 samples then, 126 now"), HasSubstr("model.weights")));
  write_rows("data.csv", 40, "0.6");
  EXPECT_THAT(refusal(config), HasSubstr("36 samples as then, of other names, sizes or content"));
  write_rows("elsewhere.csv", 40);
  config.data.path = (folder_ / "elsewhere.csv").string();
  EXPECT_EQ(run(1, config, RunStart::kResume).steps, 6);
}

TEST_F(ResumedData, DifferentSecondSplitIsWarning) {
  write_rows("data.csv", 40);
  write_rows("test.csv", 8);
  RunConfig config = over_rows();
  config.data.test_path = (folder_ / "test.csv").string();
  run(1, config);
  write_rows("test.csv", 9);
  config.train.max_steps = 6;
  testing::internal::CaptureStderr();
  EXPECT_EQ(run(1, config, RunStart::kResume).steps, 6);
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      HasSubstr("the test data of data set 'csv' are not those of the checkpoint: 8 samples then, 9 now"));
}

TEST_F(ResumedData, ProgramDataAreComparedByDigest) {
  const auto own = [](std::int64_t samples, const std::string& digest) {
    const auto split = [&](std::int64_t size, std::uint64_t number) {
      return std::make_shared<data::SyntheticDataset>(data::SyntheticOptions{
          .num_samples = size, .num_classes = 4, .height = 6, .width = 6, .split = number});
    };
    return data::DataSource{.name = "own",
                            .train = split(samples, 0),
                            .test = split(16, 1),
                            .input_shape = {1, 6, 6},
                            .num_classes = 4,
                            .train_digest = digest};
  };
  RunConfig config = over_rows();
  data_ = own(36, "one");
  run(2, config);
  config.train.max_steps = 6;
  data_ = own(37, "one");
  EXPECT_THAT([&] { run(2, config, RunStart::kResume); }, ThrowsMessage<DataError>(HasSubstr("37 now")));
  data_ = own(36, "two");
  EXPECT_THAT([&] { run(2, config, RunStart::kResume); },
              ThrowsMessage<DataError>(HasSubstr("36 samples as then")));
  data_ = own(36, "");
  EXPECT_EQ(run(2, config, RunStart::kResume).steps, 6);
}

TEST_F(ResumedData, AreNotComparedWithoutRecord) {
  write_rows("data.csv", 40);
  RunConfig config = over_rows();
  run(1, config);
  // In the form of older versions, without such a record.
  const auto folder = folder_ / "rows" / "checkpoints";
  checkpoint::TrainingCheckpoint old =
      checkpoint::load_checkpoint(checkpoint::list_checkpoints(folder).back());
  EXPECT_EQ(old.optimizer.erase("run/data"), 1u);
  std::filesystem::remove_all(folder);
  checkpoint::save_checkpoint(folder, old, 1);
  config.train.max_steps = 6;
  write_rows("data.csv", 40, "0.6");
  EXPECT_EQ(run(1, config, RunStart::kResume).steps, 6);
}

}  // namespace
}  // namespace trireme::train
