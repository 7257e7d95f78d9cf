#include "trireme/train/run/check_run_folder.h"

#include <filesystem>

#include "trireme/base/bounded_file.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/train/run/recovery.h"
#include "trireme/train/run/run_folder.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

void check_newest(const RunConfig& config, const fs::path& checkpoints) {
  const std::vector<fs::path> all = checkpoint::list_checkpoints(checkpoints);
  if (all.empty()) throw no_checkpoint_in(checkpoints);
  const std::string name = all.back().filename().string();  // step-00000120
  std::string before;
  try {
    before = read_bounded_file(all.back() / "config.toml", kMaxConfigBytes, "configuration");
  } catch (const DataError&) {
    return;  // damaged: the ranks look for another checkpoint
  }
  check_same_run(config, config_of_checkpoint(before, config), std::stoll(name.substr(name.find('-') + 1)));
}

}  // namespace

void check_run_folder(const ParallelPlan& plan, RunStart start, const Log& log) {
  const RunConfig& config = plan.config();  // with derived values, as in the checkpoint
  const RunFolder folder{config.run_folder()};
  if (start == RunStart::kResume && !fs::exists(folder.root)) throw no_checkpoint_in(folder.checkpoints());
  const RunLock lock(folder, log);
  if (start != RunStart::kResume) return;
  lock.check_existing();
  check_newest(config, folder.checkpoints());
}

}  // namespace trireme::train
