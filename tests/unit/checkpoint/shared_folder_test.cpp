// Checkpoints that ranks write and read together.

#include "trireme/checkpoint/shared_folder.h"

#include <gmock/gmock.h>

#include <fstream>

#include "tests/support/temporary_folder.h"
#include "tests/unit/checkpoint/cuts.h"
#include "trireme/base/files.h"
#include "trireme/checkpoint/checkpoint_report.h"
#include "trireme/checkpoint/consolidate.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/comm/context.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr Cut kCuts[] = {Cut::kReplicas, Cut::kRows, Cut::kColumns, Cut::kFlat, Cut::kByName};

/// Whether each rank sees the folder.
using Sees = std::vector<bool>;

void save(comm::Context& context, const fs::path& folder, Cut cut, const Sees& sees, std::int64_t step = 5) {
  const Shards mine = shards_of(cut, context.rank(), context.world_size(), true);
  SaveShares shares(context.world(), mine, sees);
  const auto part = shares.next_part(mine, {.step = step, .epoch = 1, .batch = 2, .config = "x"});
  if (part) write_part(folder, *part);
  context.world().barrier();
  if (context.is_main()) finish_checkpoint(folder, *part, 0, [] { return false; });
  context.world().barrier();
}

void load(comm::Context& context, const fs::path& folder, Cut cut, const Sees& sees, std::int64_t step = 5) {
  const auto found = find_latest_checkpoint(context.world(), folder, sees, Log("test"));
  require(found.has_value(), "nothing there");
  require(found->head.step == step && found->head.epoch == 1 && found->head.batch == 2, "another place");
  const Shards mine = shards_of(cut, context.rank(), context.world_size(), false);
  load_shards(context.world(), found->folder, mine, sees, "tensor");
  check_numbers(mine);
}

class SharedFolder : public testing::Test {
 protected:
  void save_by(int num_ranks, Cut cut, std::int64_t step = 5) const {
    comm::run_ranks_as_threads(num_ranks, [&](comm::Context& context) {
      save(context, folder_.path(), cut, Sees(static_cast<std::size_t>(num_ranks), true), step);
    });
  }
  void load_by(int num_ranks, Cut cut, std::int64_t step = 5) const {
    comm::run_ranks_as_threads(num_ranks, [&](comm::Context& context) {
      load(context, folder_.path(), cut, Sees(static_cast<std::size_t>(num_ranks), true), step);
    });
  }

  const TemporaryFolder folder_;
};

TEST_F(SharedFolder, AnyRanksReadFilesOfFour) {
  for (const Cut cut : kCuts) {
    save_by(4, cut);
    for (const int num_ranks : {1, 2, 3, 4}) {
      for (const Cut other : kCuts) load_by(num_ranks, other);
    }
  }
}

TEST_F(SharedFolder, WritersHaveSelfDescribingFiles) {
  save_by(4, Cut::kRows);
  const fs::path saved = folder_ / "step-00000005";
  for (int rank = 1; rank <= 4; ++rank) {
    const auto file = inspect_safetensors(saved / text("model-0000", rank, "-of-00004.safetensors"));
    const auto weight = std::find_if(file.tensors.begin(), file.tensors.end(), [](const TensorInfo& tensor) {
      return tensor.name.starts_with("weight[");
    });
    ASSERT_NE(weight, file.tensors.end()) << rank;
    EXPECT_THAT(file.metadata.at("boxes"), HasSubstr(weight->name));
  }
  for (const FileVerdict& verdict : verify_checkpoint(saved)) EXPECT_EQ(verdict.problem, "") << verdict.name;
  const TrainingCheckpoint loaded = load_checkpoint(saved);
  EXPECT_TRUE(loaded.optimizer.at("momentum").equal(whole_tensors().at("optimizer/momentum")));
  EXPECT_EQ(loaded.model.size(), 5u);
}

TEST_F(SharedFolder, RankWithFolderServesOthers) {
  for (const Sees& sees : {Sees{true, false, true}, Sees{true, false, false}}) {
    for (const Cut cut : kCuts) {
      comm::run_ranks_as_threads(3, [&](comm::Context& context) {
        // A rank that accesses a folder that it does not see is detected, because its folder cannot be
        // created.
        const bool is_blind = !sees[static_cast<std::size_t>(context.rank())];
        const fs::path folder = is_blind ? fs::path("/proc/none") : folder_.path();
        save(context, folder, cut, sees);
        load(context, folder, Cut::kFlat, sees);
        load(context, folder, Cut::kReplicas, sees);
      });
      load_by(2, Cut::kColumns);
    }
  }
}

TEST_F(SharedFolder, IsSharedByRanksWithSameWitness) {
  const TemporaryFolder elsewhere;
  std::ofstream(folder_ / "run.lock") << "ours";
  std::ofstream(elsewhere / "run.lock") << "theirs";
  comm::run_ranks_as_threads(4, [&](comm::Context& context) {
    const fs::path places[] = {folder_.path(), elsewhere.path(), folder_.path(), "/nowhere"};
    EXPECT_THAT(ranks_that_see(context.world(), places[context.rank()] / "run.lock"),
                testing::ElementsAre(true, false, true, false));
  });
}

TEST_F(SharedFolder, FindsDamageToAnyFileBeforeCopy) {
  save_by(4, Cut::kRows, 4);
  for (int number = 1; number <= 4; ++number) {
    save_by(4, Cut::kRows, 5);
    const fs::path file = folder_ / "step-00000005" / text("optimizer-0000", number, "-of-00004.safetensors");
    std::string bytes = read_file(file);
    bytes.back() ^= 1;
    std::ofstream(file, std::ios::binary) << bytes;
    testing::internal::CaptureStderr();
    load_by(3, Cut::kColumns, 4);
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                AllOf(HasSubstr(file.filename().string() + " is damaged"),
                      HasSubstr(text("step-00000005.damaged-", number))));
  }
}

TEST_F(SharedFolder, RejectsMissingAndMisshapenTensorsBeforeCopy) {
  save_by(2, Cut::kRows);
  const auto load_one = [&](int rank_of_it, const Shard& wrong, const Sees& sees) {
    comm::run_ranks_as_threads(2, [&](comm::Context& context) {
      Shards mine = {whole_shard("bias", at::full({7}, -1, at::kFloat))};
      if (context.rank() == rank_of_it) mine.push_back(wrong);
      try {
        load_shards(context.world(), folder_ / "step-00000005", mine, sees, "tensor");
        ADD_FAILURE() << "no error on rank " << context.rank();
      } catch (const DataError&) {
        EXPECT_EQ(mine[0].tensor[3].item<double>(), -1);
        throw;
      }
    });
  };
  for (const Sees& sees : {Sees{true, true}, Sees{true, false}}) {
    EXPECT_THAT([&] { load_one(1, whole_shard("other", at::full({3}, 0.0)), sees); },
                ThrowsMessage<DataError>(HasSubstr("has no tensor 'other'")));
    EXPECT_THAT([&] { load_one(0, whole_shard("weight", at::full({3}, 0.0)), sees); },
                ThrowsMessage<DataError>(HasSubstr("'weight' has shape [9, 10, 2]")));
  }
}

TEST_F(SharedFolder, RejectsCheckpointWithIncompleteTensor) {
  CheckpointPart part;
  part.head.step = 5;
  part.shards = shards_of(Cut::kRows, 0, 2, true);  // and nothing from the other rank
  write_part(folder_.path(), part);
  const fs::path saved = finish_checkpoint(folder_.path(), part, 0, [] { return false; });
  EXPECT_THAT([&] { load_checkpoint(saved); },
              ThrowsMessage<DataError>(HasSubstr("holds 3 of the 7 elements of 'bias'")));
}

// Other users may be able to write to the folder.
TEST(SecurityCheckpoint, RejectsLinkInPlaceOfWorkingFolder) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "elsewhere");
  fs::create_directories(folder / "checkpoints");
  CheckpointPart part;
  part.head.step = 5;
  part.shards = shards_of(Cut::kRows, 0, 1, true);
  fs::create_directory_symlink(folder / "elsewhere", folder / "checkpoints/.writing-step-00000005.0");
  EXPECT_THAT([&] { write_part(folder / "checkpoints", part); },
              ThrowsMessage<DataError>(HasSubstr("found a symbolic link")));
  part.number = 1;
  EXPECT_NO_THROW(reject_part(folder / "checkpoints", part, "no room"));
  EXPECT_TRUE(fs::is_empty(folder / "elsewhere"));
}

TEST_F(SharedFolder, RecordOfEarlierAttemptIsIgnored) {
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const Shards mine = shards_of(Cut::kRows, context.rank(), 2, true);
    SaveShares before(context.world(), mine, {true, true});
    write_part(folder_.path(), *before.next_part(mine, {.step = 5}));  // and no rank finishes it
    SaveShares now(context.world(), mine, {true, true});
    const CheckpointPart part = *now.next_part(mine, {.step = 5});
    if (!context.is_main()) return;
    write_part(folder_.path(), part);
    EXPECT_THAT([&] { finish_checkpoint(folder_.path(), part, 0, [] { return false; }); },
                ThrowsMessage<DataError>(HasSubstr("writer 2 of 2 has not come to the end of its part")));
  });
  EXPECT_TRUE(fs::is_empty(folder_.path())) << "neither attempt has left anything";
}

TEST_F(SharedFolder, WeightsFormOneFileForAnyCut) {
  const TensorMap whole = whole_tensors();
  for (const Cut cut : kCuts) {
    comm::run_ranks_as_threads(3, [&](comm::Context& context) {
      const Shards mine = shards_of(cut, context.rank(), 3, true);
      const fs::path path = context.is_main() ? folder_ / "all.safetensors" : "/proc/none";
      const std::string digest = save_from_ranks(context.world(), mine, path, {{"model", "m"}});
      EXPECT_EQ(digest, context.is_main() ? xxh3_of(whole) : "");
    });
    const SafetensorsFile file = load_safetensors(folder_ / "all.safetensors");
    EXPECT_EQ(xxh3_of(file.tensors), xxh3_of(whole));
    EXPECT_EQ(file.metadata.at("model"), "m");
  }
}

TEST_F(SharedFolder, ExportsToOneFileOrIndexedFiles) {
  save_by(3, Cut::kFlat);
  const fs::path saved = folder_ / "step-00000005", out = folder_ / "w.safetensors";
  TensorMap model = whole_tensors();
  model.erase("optimizer/momentum");
  EXPECT_EQ(export_weights(saved, out).files, std::vector<fs::path>{out});
  EXPECT_EQ(xxh3_of(load_safetensors(out).tensors), xxh3_of(model));
  const ExportedFiles several = export_weights(saved, out, {.max_file_bytes = 100});
  EXPECT_EQ(several.files, files_of_export(saved, out, {.max_file_bytes = 100}));
  ASSERT_EQ(several.files.size(), 3u);
  EXPECT_EQ(several.files[0], folder_ / "w-00001-of-00002.safetensors");
  EXPECT_THAT(
      read_file(folder_ / "w.safetensors.index.json"),
      AllOf(HasSubstr("\"weight\": \"w-00002-of-00002.safetensors\""), HasSubstr("\"total_size\": 768")));
  TensorMap both = load_safetensors(several.files[0]).tensors;
  both.merge(load_safetensors(several.files[1]).tensors);
  EXPECT_EQ(xxh3_of(both), xxh3_of(model));
}

}  // namespace
}  // namespace trireme::checkpoint
