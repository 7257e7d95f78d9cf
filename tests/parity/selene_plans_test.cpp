// Published configurations as known answers of the planner: the meshes of Narayanan et al., "Efficient
// Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (SC 2021, arXiv 2104.04473v5),
// tables 1 and 2 (PTD-P), on the described cluster of the paper. Prints the table of
// bench/results/described_machines.md.
#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "tests/support/paths.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"
#include "trireme/train/machine/described_forms.h"
#include "trireme/train/planner/internal/plan_work.h"
#include "trireme/train/planner/plan_search.h"

namespace trireme::train {
namespace {

constexpr double kBehind = 1.3;                              ///< allowed slowdown of the published mesh
constexpr std::int64_t kVocabulary = 51200, kLength = 2048;  // the paper, section 5

struct Published {
  double parameters = 0;  ///< in billions
  std::int64_t heads = 0, width = 0, layers = 0, tensor = 0, pipeline = 0, batch = 0;
  int gpus = 0;
  double tflops = 0;  ///< per GPU

  std::int64_t replicas() const { return gpus / (tensor * pipeline); }
};

std::vector<Published> published() {
  std::istringstream rows(read_file(test::checkout("tests/parity/data/megatron_meshes.csv")));
  std::vector<Published> all;
  std::string line;
  while (std::getline(rows, line)) {
    if (line.empty() || line.front() == '#') continue;
    std::ranges::replace(line, ',', ' ');
    std::istringstream row(line);
    Published each;
    row >> each.parameters >> each.heads >> each.width >> each.layers >> each.tensor >> each.pipeline >>
        each.gpus >> each.batch >> each.tflops;
    all.push_back(each);
  }
  return all;
}

RunConfig config_of(const Published& row) {
  RunConfig config;
  config.data.name = "text";
  config.data.block = kLength;
  config.model = {.name = "gpt", .layers = row.layers, .heads = row.heads, .width = row.width};
  config.train.precision = "bf16";
  config.train.global_batch = row.batch;
  config.optimizer.name = "adamw";
  return config;
}

RunConfig on_published_mesh(const Published& row) {
  RunConfig config = config_of(row);
  config.parallel.tensor = row.tensor;
  config.parallel.pipeline = row.pipeline;
  config.parallel.data = row.replicas();
  return config;
}

/// The FLOP count of the paper: with the recomputed forward, and attention to all pairs of tokens.
double paper_tflops(const Published& row, double step_s) {
  const auto tokens = static_cast<double>(row.batch * kLength);
  const auto width = static_cast<double>(row.width), layers = static_cast<double>(row.layers);
  const double flops = 96 * tokens * layers * width * width *
                       (1 + kLength / (6 * width) + kVocabulary / (16 * layers * width));
  return flops / step_s / row.gpus / 1e12;
}

/// Plans with more actions are skipped. Others with larger micro-batches are estimated.
constexpr std::int64_t kMaxWorkOfPlan = 1'000'000;

/// The method of the paper on its mesh: 1F1B, interleaved where that is faster, all layers recomputed, no
/// ZeRO. Table 1 does not give micro-batches and chunks. The fastest ones that fit are used.
std::optional<PlannedStep> published_way(const Published& row, const MeasuredForms& forms,
                                         std::int64_t limit) {
  std::optional<PlannedStep> best;
  for (const std::int64_t samples : {1, 2, 4, 8, 16}) {
    for (const std::int64_t chunks : {1, 2, 3, 4, 5}) {
      if (row.batch % (row.replicas() * samples) != 0) continue;
      if (row.pipeline == 1 && chunks > 1) continue;
      RunConfig config = on_published_mesh(row);
      const std::int64_t microbatches = row.batch / (row.replicas() * samples);
      config.train.recompute_layers = {"*"};
      if (row.pipeline == 1) {
        config.train.accumulation = microbatches;
      } else {
        config.parallel.microbatches = microbatches;
        config.parallel.schedule = chunks == 1 ? "1f1b" : "interleaved-1f1b";
        config.parallel.chunks = chunks == 1 ? 0 : chunks;
      }
      if (work_of_estimate(config, row.layers) > kMaxWorkOfPlan) continue;
      try {
        PlannedStep step = plan_step(config, row.gpus, forms);
        if (step.memory_bytes <= limit && (!best || step.step_s < best->step_s)) best = std::move(step);
      } catch (const InvalidArgument&) {  // more stages than layers
      }
    }
  }
  return best;
}

/// The same on any mesh: tensor parallelism within one host, and any pipeline.
std::optional<PlannedStep> published_way_on_any_mesh(const Published& row, const MeasuredForms& forms,
                                                     std::int64_t limit) {
  std::optional<PlannedStep> best;
  for (const std::int64_t tensor : {1, 2, 4, 8}) {
    for (std::int64_t pipeline = 1; pipeline <= row.layers; ++pipeline) {
      if (row.gpus % (tensor * pipeline) != 0) continue;
      Published other = row;
      other.tensor = tensor;
      other.pipeline = pipeline;
      std::optional<PlannedStep> way = published_way(other, forms, limit);
      if (way && (!best || way->step_s < best->step_s)) best = std::move(way);
    }
  }
  return best;
}

class MegatronPlans : public testing::TestWithParam<Published> {};

TEST_P(MegatronPlans, PublishedMeshIsNearlyFastest) {
  const Published& row = GetParam();
  const Machine machine = read_machine(test::checkout("examples/machines/a100_selene.toml"));
  const PlanSearchOptions options{
      .limit_bytes = machine.limit_bytes(), .alternatives = 1, .max_work = 20'000'000};
  const auto search = [&](const RunConfig& config) {
    return search_plans(config, row.gpus, described_forms(config, row.gpus, machine, kVocabulary), options);
  };
  const PlanSearch all = search(config_of(row)), of_mesh = search(on_published_mesh(row));
  const bool is_complete = all.is_complete && of_mesh.is_complete;
  const bool found = !all.plans.empty() && !of_mesh.plans.empty();
  EXPECT_TRUE(found || !is_complete);
  const MeasuredForms forms = described_forms(config_of(row), row.gpus, machine, kVocabulary);
  const auto way = published_way(row, forms, options.limit_bytes),
             best_way = published_way_on_any_mesh(row, forms, options.limit_bytes);
  ASSERT_TRUE(way.has_value() && best_way.has_value());
  const double tflops = paper_tflops(row, way->step_s);
  const auto words_of = [&](const PlanSearch& search) {
    return search.plans.empty() ? "none found" : in_words(search.plans.front().config, row.gpus);
  };
  const double slower = found ? of_mesh.plans.front().step_s / all.plans.front().step_s - 1 : 0;
  std::cout << std::fixed << std::setprecision(1) << "| " << row.parameters << " | " << row.gpus << " | "
            << row.batch << " | " << row.tensor << " x " << row.pipeline << " x " << row.replicas() << " | "
            << words_of(of_mesh) << " | " << words_of(all) << (is_complete ? "" : " (ended early)") << " | "
            << 100 * slower << " % | " << in_words(way->config, row.gpus) << " | "
            << in_words(best_way->config, row.gpus) << " | " << 100 * (way->step_s / best_way->step_s - 1)
            << " % | " << std::setprecision(0) << tflops << " | " << row.tflops << " | " << std::showpos
            << 100 * (tflops / row.tflops - 1) << " % |\n"
            << std::noshowpos;
  EXPECT_LT(way->step_s, kBehind * best_way->step_s) << in_words(best_way->config, row.gpus);
  // Beyond 5 % the best plan uses ZeRO 3, for which the estimate is too fast between hosts. The page of
  // results explains it.
  if (slower > 0.05) {
    EXPECT_EQ(all.plans.front().config.parallel.zero, 3) << words_of(all);
  }
  // The paper interleaves. If only 1F1B fits by the memory estimate, ranks wait longer, up to the whole
  // bubble of 1F1B.
  const bool waits = way->config.parallel.schedule == "1f1b" && row.pipeline > 1;
  const double bubble =
      waits ? (row.pipeline - 1) / static_cast<double>(way->config.parallel.microbatches) : 0;
  EXPECT_GT(tflops, row.tflops / (1 + bubble)) << "overheads that are not described are missing";
  EXPECT_LT(tflops, 1.75 * row.tflops);
}

/// The search for more GPUs takes up to a minute. It runs with TRIREME_TEST_ALL_MODES=1.
std::vector<Published> searched() {
  std::vector<Published> rows = published();
  if (std::getenv("TRIREME_TEST_ALL_MODES") == nullptr)
    std::erase_if(rows, [](const Published& row) { return row.gpus > 64; });
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Tables, MegatronPlans, testing::ValuesIn(searched()), [](const auto& info) {
  return text("Billions", std::llround(info.param.parameters), "On", info.param.gpus);
});

}  // namespace
}  // namespace trireme::train
