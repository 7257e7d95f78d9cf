// The memory that a run reports, compared with the formulas.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

using testing::HasSubstr;

constexpr double kBucketMib = 0.25;

struct Case {
  int zero = 0;
  int num_ranks = 2;
  const char* backend = "shm";
  const char* precision = "fp32";
  int shard_ranks = 0;
  int persistent_below = 0;
  bool keep_gradients = false;
};

class MemoryOfARun : public testing::TestWithParam<Case> {
 protected:
  nlohmann::json summary(const std::vector<std::string>& more) {
    std::vector<std::string> words = {bin("trireme"), "train", checkout("examples/quick.toml"), "-n",
                                      text(GetParam().num_ranks)};
    for (const std::string& setting :
         {text("run.folder=", folder_.path().string()), std::string("run.name=r"),
          std::string("train.max_steps=4"), std::string("model.name=mlp"),
          std::string("model.hidden=[512,512,512]"), std::string("optimizer.name=adamw"),
          text("parallel.bucket_mib=", kBucketMib)}) {
      words.insert(words.end(), {"--set", setting});
    }
    words.insert(words.end(), more.begin(), more.end());
    const ChildResult result = run(words, {}, 60);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr("at its peak: weights "));
    EXPECT_THAT(read_file(folder_ / "r/report.html"), HasSubstr("by formula"));
    return nlohmann::json::parse(read_file(folder_ / "r/summary.json"));
  }

  TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(
    Every, MemoryOfARun,
    testing::Values(Case{0, 1}, Case{0}, Case{1}, Case{2}, Case{3}, Case{3, 3}, Case{1, 2, "gloo"},
                    Case{2, 2, "gloo"}, Case{3, 2, "gloo"}, Case{1, 2, "shm", "bf16"},
                    Case{2, 3, "gloo", "bf16"}, Case{3, 2, "gloo", "bf16"}, Case{2, 4, "shm", "fp32", 2},
                    Case{3, 4, "gloo", "fp32", 2}, Case{3, 2, "gloo", "fp32", 0, 300'000},
                    Case{2, 2, "shm", "fp32", 0, 0, true}),
    [](const auto& test) {
      return text("zero", test.param.zero, "_", test.param.num_ranks, "_", test.param.backend, "_",
                  test.param.precision, "_", test.param.shard_ranks, "_", test.param.persistent_below,
                  test.param.keep_gradients ? "_kept" : "");
    });

TEST_P(MemoryOfARun, HasTheStateOfTheFormula) {
  const Case& tried = GetParam();
  const nlohmann::json found = summary(
      {"--set", text("parallel.zero=", tried.zero), "--set", text("comm.backend=", tried.backend), "--set",
       text("train.precision=", tried.precision), "--set", text("parallel.shard_ranks=", tried.shard_ranks),
       "--set", text("parallel.persistent_below=", tried.persistent_below), "--set",
       text("parallel.keep_gradients=", tried.keep_gradients ? "true" : "false"), "--set",
       text("train.accumulation=", tried.keep_gradients ? 2 : 1)});
  const auto bytes = [&](const std::string& column, const std::string& kind) {
    return found.value(text("memory_", column, "_", kind, "_bytes"), 0.0);
  };
  // Two buckets, each as large as the largest tensor, and the part of a third that is being reduced. gloo
  // frees memory late. Gradients that stay whole until the update (stage 1, kept) include their sums.
  const double bucket = 784.0 * 512 * 4,
               buckets_at_a_time = tried.backend == std::string("gloo") ? 4.02 : 3.02;
  const bool are_whole = tried.zero == 1 || tried.keep_gradients;
  const double buckets = tried.zero >= 2 && !are_whole ? buckets_at_a_time * bucket : 0;
  for (const std::string kind : {"weights", "gradients", "optimizer"}) {
    const double measured = bytes("update", kind), formula = bytes("formula", kind);
    EXPECT_GT(measured, 0.98 * formula) << kind;
    EXPECT_LT(measured, 1.02 * formula + (kind == "gradients" ? buckets : 0)) << kind;
  }
  EXPECT_GE(bytes("peak", "activations"), bytes("update", "activations"));
}

}  // namespace
}  // namespace trireme::test
