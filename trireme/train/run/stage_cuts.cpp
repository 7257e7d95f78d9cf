#include "trireme/train/run/internal/stage_cuts.h"

#include <utility>
#include <vector>

#include "trireme/base/bounded_file.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/train/config/internal/config_keys.h"
#include "trireme/train/run/internal/on_main.h"
#include "trireme/train/run/run_folder.h"

namespace trireme::train {
namespace {

/// "3,7,"; empty: no cuts in a checkpoint. The resume reports an unreadable checkpoint later.
std::string cuts_saved_in(const RunConfig& config) {
  const auto folders = checkpoint::list_checkpoints(RunFolder{config.run_folder()}.checkpoints());
  if (folders.empty()) return "";
  try {
    const RunConfig saved = config_of_checkpoint(
        read_bounded_file(folders.back() / "config.toml", kMaxConfigBytes, "configuration"), config);
    std::string cuts;
    for (const std::int64_t cut : saved.parallel.cuts) {
      if (!std::in_range<int>(cut)) return "";
      cuts += text(cut, ',');
    }
    return cuts;
  } catch (const Error&) {
    return "";
  }
}

}  // namespace

ParallelPlan with_saved_cuts(const ParallelPlan& plan, comm::Context& context, ResumeMode resume_mode) {
  if (!plan.measures_cuts()) return plan;
  std::string saved;
  on_main(context, [&] {
    if (resume_mode != ResumeMode::kNever) saved = cuts_saved_in(plan.config());
  });
  saved = context.world().all_gather_text(saved).front();
  std::vector<int> cuts;
  for (const std::string& cut : split(saved, ',')) {
    if (!cut.empty()) cuts.push_back(std::stoi(cut));
  }
  if (std::ssize(cuts) != plan.program().num_stages - 1) return plan;
  ParallelPlan as_saved = plan.with_cuts(std::move(cuts));
  if (context.is_main()) {
    context.log().info("resume: parallel.cuts = ", to_toml(as_saved.config().parallel.cuts),
                       ", as the checkpoint has them, instead of a new measurement");
  }
  return as_saved;
}

std::string cuts_in_words(const Trainer& trainer) {
  std::vector<std::string> first = {text("0 (", trainer.layers().front().name, ")")};
  for (const int cut : trainer.plan().cuts())
    first.push_back(text(cut, " (", trainer.layers()[static_cast<std::size_t>(cut)].name, ")"));
  return text("stages of equal measured time begin at layers ", join(first),
              "; parallel.cuts = ", to_toml(trainer.plan().config().parallel.cuts), " repeats them");
}

}  // namespace trireme::train
