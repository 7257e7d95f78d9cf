// An epoch is killed halfway and resumed on another number of ranks. Each sample is used exactly once.

#include <gmock/gmock.h>

#include <algorithm>
#include <csignal>
#include <numeric>
#include <thread>

#include "tests/support/child_process.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;

std::int64_t steps_done(const fs::path& out) {
  return fs::exists(out / "done") ? std::stoll(read_file(out / "done")) : 0;
}

void add_samples(const fs::path& file, std::vector<std::int64_t>& seen) {
  for (const std::string& line : split(read_file(file), '\n')) {
    if (!line.empty()) seen.push_back(std::stoll(line));
  }
}

TEST(Epoch, HasEachSampleOnceAfterGrownRestart) {
  constexpr std::int64_t kSamples = 1000, kSteps = 42;
  const TemporaryFolder folder;
  const fs::path out = folder / "seen", packed = folder / "packed";
  fs::create_directory(out);
  std::string table = "x,number\n";
  for (std::int64_t i = 0; i < kSamples; ++i) table += text(0.5, ",", i, "\n");
  write_file_atomic(folder / "train.csv", table);
  write_file_atomic(folder / "val.csv", "x,number\n0.5,0\n");
  const ChildResult pack = run({bin("trireme"), "data", "pack", "csv", packed.string(), "--set",
                                "data.path=" + folder.path().string(), "--set",
                                text("data.num_classes=", kSamples), "--shard-mib", "0.004"});
  ASSERT_EQ(pack.exit_code, 0) << pack.err;

  const auto command = [&](int ranks, const std::string& pause_s) {
    return std::vector<std::string>{bin("trireme"),    "launch",        "-n",         text(ranks), "--",
                                    bin("rank_epoch"), packed.string(), out.string(), pause_s};
  };
  std::int64_t killed_at = 0;
  {
    ChildProcess first(command(2, "0.05"));
    for (int waited = 0; steps_done(out) < kSteps / 3 && waited < 6000; ++waited)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    for (const int rank : first.children()) ::kill(rank, SIGKILL);
    first.send_signal(SIGKILL);
    first.wait(30);
    killed_at = steps_done(out);
  }
  ASSERT_GE(killed_at, kSteps / 3);
  ASSERT_LT(killed_at, kSteps);
  const ChildResult second = run(command(3, "0"));
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(steps_done(out), kSteps);

  std::vector<std::int64_t> seen, all(kSamples);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const int world = step < killed_at ? 2 : 3;
    for (int rank = 0; rank < world; ++rank) add_samples(out / text(step, ".", world, ".", rank), seen);
  }
  EXPECT_FALSE(std::is_sorted(seen.begin(), seen.end()));
  std::sort(seen.begin(), seen.end());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(seen, all);
}

}  // namespace
}  // namespace trireme::test
