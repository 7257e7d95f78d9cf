// Numerical parity of parallel training: any mode on N ranks gives the numbers of one rank on the same global
// batch. The results are bitwise equal where the order of additions is the same, else within a bound. There
// is one row per combination.
//
// The table is valid on every device. The mock device, whose memory the host cannot access, is compared with
// one rank on the CPU. A GPU that ranks share is compared with one rank on that GPU. mode_cover.h selects the
// rows that run. All rows run with TRIREME_TEST_ALL_MODES=1 and on a GPU.

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "tests/multiproc/mode_cover.h"
#include "tests/multiproc/mode_table.h"
#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/remembered_run.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trained_run.h"
#include "trireme/base/num_fields.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

struct Device {
  const char* name;
  const char* of_one_rank;       ///< the device of the reference numbers
  std::optional<Pairs> pairs;    ///< that must occur together in a row that runs; none: every row runs
  const char* preload = "";      ///< the library in bin/ that provides the device
  const char* needs_file = "/";  ///< the file that exists where the device is
};

constexpr Device kCpu{.name = "cpu", .of_one_rank = "cpu", .pairs = Pairs::kAll},
    kStandIn{
        .name = "stand_in", .of_one_rank = "cpu", .pairs = Pairs::kOfDevice, .preload = "stand_in_device.so"},
    kGpu{.name = "cuda", .of_one_rank = "cuda", .pairs = {}, .needs_file = "/dev/nvidia0"};

struct ModeOn {
  Mode mode;
  Device device;
};

std::ostream& operator<<(std::ostream& out, const ModeOn& row) {
  return out << row.mode.mesh << " on " << row.device.name;
}

std::vector<Mode> table_of(const Device& device) {
  std::vector<Mode> modes;
  for (const Mode& mode : kModes) {
    // Offloading to host memory differs from no offloading only on a device.
    const std::string places = text(mode.state_in, mode.shards_in, mode.activations_in);
    const bool in_host = places.find("host") != std::string::npos;
    if (!in_host || std::string(device.name) != "cpu") modes.push_back(mode);
  }
  return modes;
}

bool all_rows_are_asked_for() {
  const char* value = std::getenv("TRIREME_TEST_ALL_MODES");
  return value != nullptr && *value != '\0';
}

/// Returns no modes for a device that does not exist.
std::vector<ModeOn> modes_on(const Device& device) {
  if (!std::filesystem::exists(device.needs_file)) return {};
  std::vector<Mode> modes = table_of(device);
  if (device.pairs && !all_rows_are_asked_for()) modes = rows_that_cover(modes, *device.pairs);
  std::vector<ModeOn> rows;
  for (const Mode& mode : modes) rows.push_back({mode, device});
  return rows;
}

// Bounds of docs/training.md.
constexpr double kSumsBound = 1e-5;
constexpr double kFp16Bound = 1e-4;
constexpr double kBf16LossBound = 1e-3;
// Bound for the norm of the differences of all weights. The largest difference of one weight is an extreme
// value that varies threefold with the order of the samples. It is 3.6e-4 to 1.2e-3 over six seeds, for a GPT
// over two pieces. The norm varies twofold (1.5e-4 to 3.1e-4).
constexpr double kBf16NormBound = 1e-3;

/// Ten steps: two epochs of 4096 samples in batches of 1000, with equal and unequal parts and a small last
/// batch. A GPT uses sequences of 50 characters, which no number of pieces divides.
std::vector<std::string> train_words(const Mode& mode, bool is_gpt, const std::string& on) {
  std::vector<std::string> words = {"train", checkout("examples/quick.toml")};
  if (is_gpt) {
    for (const std::string& setting :
         {std::string("data.name=text"), "data.path=" + checkout("LICENSE"), std::string("data.block=50"),
          std::string("model.name=gpt"), std::string("model.layers=2"), std::string("model.heads=2"),
          std::string("model.width=16"), std::string("optimizer.name=sgd"), std::string("optimizer.lr=0.1"),
          std::string("train.epochs=10"), std::string("train.max_steps=10"),
          text("parallel.context=", mode.context)}) {
      words.insert(words.end(), {"--set", setting});
    }
  }
  for (const std::string& setting :
       {std::string("run.log_every_steps=1"), "train.device=" + on,
        text("train.global_batch=", is_gpt ? 40 : 1000), text("train.accumulation=", mode.accumulation),
        text("parallel.pipeline=", mode.stages), text("parallel.tensor=", mode.tensor),
        text("train.precision=", mode.precision), std::string("parallel.microbatches=4"),
        // Clipped steps are too short to show rounding.
        text("train.clip_norm=", mode.equal == Equal::kUpToBf16 ? 0 : mode.clip_norm),
        std::string("parallel.bucket_mib=0.1"), text("parallel.compression=", mode.compression),
        text("parallel.zero=", mode.zero), text("parallel.shard_ranks=", mode.shard_ranks),
        text("parallel.persistent_below=", mode.persistent_below),
        text("parallel.keep_gradients=", mode.keep_gradients ? "true" : "false"),
        text("offload.optimizer=", mode.state_in), text("offload.parameters=", mode.shards_in),
        text("offload.activations=", mode.activations_in), std::string("offload.part_mib=0.01"),
        text("train.recompute_layers=", mode.recomputed), text("comm.backend=", mode.backend),
        std::string("comm.torch_threads=1"), std::string("comm.timeout_s=30")}) {
    words.insert(words.end(), {"--set", setting});
  }
  if (*mode.optimizer != '\0')
    words.insert(words.end(),
                 {"--set", text("optimizer.name=", mode.optimizer), "--set", text("optimizer.lr=", mode.lr)});
  return words;
}

/// The command that trains over the ranks of the mode, into FOLDER/ranks.
std::vector<std::string> command_on_ranks(const Mode& mode, const std::string& on,
                                          const std::string& folder) {
  std::vector<std::string> command, words = train_words(mode, mode.context > 1, on);
  words.insert(words.end(), {"--set", "run.folder=" + folder, "--set", "run.name=ranks"});
  if (mode.ranks_per_host == 0) {
    command = {bin("trireme")};
    words.insert(words.end(), {"-n", text(mode.ranks)});
  } else {
    const std::string on_its_host =
        text("TRIREME_HOST_ID=host$((RANK / ", mode.ranks_per_host, ")) exec \"$0\" \"$@\"");
    command = {bin("trireme"), "launch", "-n",        text(mode.ranks),    "--",
               "bash",         "-c",     on_its_host, bin("trireme-torch")};
  }
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

TEST(ModeTable, HasNoFieldThatChangesNothing) {
  constexpr auto kChanges = std::to_array<void (*)(Mode&)>({
      [](Mode& mode) { mode.ranks = 5; },
      [](Mode& mode) { mode.accumulation = 5; },
      [](Mode& mode) { mode.backend = "other"; },
      [](Mode& mode) { mode.compression = "other"; },
      [](Mode& mode) { mode.equal = Equal::kUpToBf16; },
      [](Mode& mode) { mode.ranks_per_host = 5; },
      [](Mode& mode) { mode.stages = 5; },
      [](Mode& mode) { mode.tensor = 5; },
      [](Mode& mode) { mode.precision = "other"; },
      [](Mode& mode) { mode.zero = 5; },
      [](Mode& mode) { mode.shard_ranks = 5; },
      [](Mode& mode) { mode.persistent_below = 5; },
      [](Mode& mode) { mode.keep_gradients = true; },
      [](Mode& mode) { mode.clip_norm = 5; },
      [](Mode& mode) { mode.recomputed = "other"; },
      [](Mode& mode) { mode.context = 5; },
      [](Mode& mode) { mode.state_in = "other"; },
      [](Mode& mode) { mode.shards_in = "other"; },
      [](Mode& mode) { mode.activations_in = "other"; },
      [](Mode& mode) { mode.optimizer = "other"; },
      [](Mode& mode) { mode.lr = 5; },
  });
  // Two more fields name the case: name and mesh.
  static_assert(num_fields<Mode>() == kChanges.size() + 2, "each field has its change");
  const Mode plain{.name = "", .mesh = "", .ranks = 2, .optimizer = "sgd"};
  for (std::size_t i = 0; i < kChanges.size(); ++i) {
    Mode changed = plain;
    kChanges[i](changed);
    EXPECT_NE(command_on_ranks(changed, "cpu", "f"), command_on_ranks(plain, "cpu", "f"))
        << "field " << i << " of those that have a change";
  }
}

/// Whether the values of two factors in `row` also occur together in one of `rows`.
bool meet_in_one(const Mode& row, const Factor& one, const Factor& other, const std::vector<Mode>& rows) {
  return std::any_of(rows.begin(), rows.end(), [&](const Mode& each) {
    return one.value_of(each) == one.value_of(row) && other.value_of(each) == other.value_of(row);
  });
}

TEST(ModeCover, EachPairIsInRunningRow) {
  // Two more fields name the case: name and mesh.
  static_assert(num_fields<Mode>() == kFactors.size() + 2, "each field is a factor");
  const std::vector<Mode> table = table_of(kCpu), running = rows_that_cover(table, Pairs::kAll);
  std::vector<Factor> factors(kFactors.begin(), kFactors.end());
  factors.push_back(kAxes);
  for (const Mode& row : table) {
    for (const Factor& one : factors) {
      for (const Factor& other : factors)
        EXPECT_TRUE(meet_in_one(row, one, other, running))
            << row.name << ": " << one.name << ", " << other.name;
    }
  }
}

TEST(ModeCover, DeviceRowsCoverTheTable) {
  const std::vector<Mode> table = table_of(kStandIn), running = rows_that_cover(table, Pairs::kOfDevice);
  int num_own = 0;
  for (const Mode& row : table) {
    for (const Factor& one : kFactors) {
      if (one.is_of_device == nullptr || !one.is_of_device(row)) continue;
      ++num_own;
      for (const Factor& other : kFactors)
        EXPECT_TRUE(meet_in_one(row, one, other, running))
            << row.name << ": " << one.name << ", " << other.name;
    }
  }
  EXPECT_GT(num_own, 100);
}

TEST(ModeCover, EachRunningRowAddsAPair) {
  for (const Device& device : {kCpu, kStandIn}) {
    const std::vector<Mode> table = table_of(device), running = rows_that_cover(table, *device.pairs);
    const PairTable pairs = pairs_of(running, *device.pairs);
    EXPECT_LT(3 * running.size(), 2 * table.size()) << device.name;
    for (std::size_t i = 0; i < running.size(); ++i) {
      EXPECT_TRUE(std::any_of(pairs.rows[i].begin(), pairs.rows[i].end(),
                              [&](std::size_t pair) {
                                return std::count_if(
                                           pairs.rows.begin(), pairs.rows.end(), [&](const auto& row) {
                                             return std::find(row.begin(), row.end(), pair) != row.end();
                                           }) == 1;
                              }))
          << device.name << ": " << running[i].name;
    }
  }
}

class Modes : public testing::TestWithParam<ModeOn> {
 protected:
  const Device& device() const { return GetParam().device; }

  TrainedRun train_on_one_rank(const Mode& mode) const {
    const int of_each = mode.accumulation * (mode.stages > 1 ? 4 : 1);
    const int parts = mode.equal == Equal::kBits ? replicas_of(mode) * of_each : 1;
    const Mode one{.name = "",
                   .mesh = "",
                   .accumulation = parts,
                   .equal = mode.equal,
                   .precision = mode.precision,
                   .clip_norm = mode.clip_norm,
                   .optimizer = mode.optimizer,
                   .lr = mode.lr};
    std::vector<std::string> command = train_words(one, mode.context > 1, device().of_one_rank);
    command.insert(command.begin(), bin("trireme-torch"));
    return remembered_run(command);
  }

  TrainedRun in_full_precision(Mode mode) const {
    mode.precision = "fp32";
    return train_on_one_rank(mode);
  }

  TrainedRun train_on_ranks(const Mode& mode) const {
    const std::vector<std::string> command = command_on_ranks(mode, device().name, folder_.path().string());
    std::map<std::string, std::string> variables;
    if (*device().preload != '\0') variables["LD_PRELOAD"] = bin(device().preload);
    const ChildResult result = run(command, variables, 120);
    if (result.exit_code != 0)
      throw std::runtime_error(text(join(command, " "), "\n", result.out, result.err));
    return read_run(folder_ / "ranks");
  }

  TemporaryFolder folder_;
};

TEST_P(Modes, GiveTheNumbersOfOneRank) {
  const Mode& mode = GetParam().mode;
  const TrainedRun one = train_on_one_rank(mode), ranks = train_on_ranks(mode);
  EXPECT_EQ(ranks.world_size, mode.ranks);
  ASSERT_EQ(ranks.losses.size(), 10u);
  EXPECT_LT(ranks.losses.back(), ranks.losses.front()) << "nothing was learnt";
  const auto [loss, weight, norm] = distance(ranks, one);
  switch (mode.equal) {
    case Equal::kBits:
      EXPECT_EQ(ranks.weights_xxh3, one.weights_xxh3);
      EXPECT_EQ(ranks.losses, one.losses);
      break;
    case Equal::kUpToSums:
      EXPECT_LT(loss, kSumsBound);
      EXPECT_LT(weight, kSumsBound);
      break;
    case Equal::kUpToFp16:
      EXPECT_LT(loss, kFp16Bound);
      EXPECT_LT(weight, kFp16Bound);
      break;
    case Equal::kUpToBf16:
      EXPECT_LT(loss, kBf16LossBound);
      EXPECT_LT(norm, kBf16NormBound);
      EXPECT_GT(distance(ranks, in_full_precision(mode)).weight, kSumsBound) << "nothing was rounded to bf16";
      break;
  }
}

std::string name_of(const testing::TestParamInfo<ModeOn>& row) { return row.param.mode.name; }

INSTANTIATE_TEST_SUITE_P(Table, Modes, testing::ValuesIn(modes_on(kCpu)), name_of);
INSTANTIATE_TEST_SUITE_P(TableOnStandIn, Modes, testing::ValuesIn(modes_on(kStandIn)), name_of);
INSTANTIATE_TEST_SUITE_P(TableOnGpu, Modes, testing::ValuesIn(modes_on(kGpu)), name_of);

}  // namespace
}  // namespace trireme::test
