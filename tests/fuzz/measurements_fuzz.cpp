// A file of a model's measured costs, and estimates from it: for one rank, and for two stages on two
// replicas. The configuration keys that the costs were measured with become those of the estimate.
#include "tests/fuzz/reading.h"
#include "trireme/train/estimate/estimate.h"
#include "trireme/train/planner/plan_review.h"

using namespace trireme;

namespace {

train::ParallelPlan plan_of(int pipeline, int ranks) {
  train::RunConfig config;
  config.data.name = "synthetic";
  config.model.hidden = {8, 8, 8};
  config.parallel.pipeline = pipeline;
  if (pipeline > 1) config.parallel.microbatches = 2;
  return train::resolve_plan(config, ranks);
}

void estimate_by(const train::MeasuredForms& forms, const train::ParallelPlan& plan) {
  train::MeasuredForms own = forms;
  own.front().model = train::model_key(plan);
  fuzz::is_read([&] {
    const train::Estimate found =
        train::estimate(plan, train::form_of(own, plan), train::WeightsMemory::kOwn);
    for (const train::EstimateOfRank& rank : found.ranks) rank.memory.at_peak.total();
  });
}

}  // namespace

extern "C" int fuzz_measurements(const std::uint8_t* data, std::size_t size) {
  static const train::ParallelPlan alone = plan_of(1, 1), stages = plan_of(2, 4);
  fuzz::is_read([&] {
    const train::MeasuredForms forms =
        train::parse_measurements(std::string(fuzz::text_in(data, size)), "input");
    const std::string written = train::to_text(forms);
    if (train::to_text(train::parse_measurements(written, "written")) != written) __builtin_trap();
    estimate_by(forms, alone);
    estimate_by(forms, stages);
  });
  return 0;
}
