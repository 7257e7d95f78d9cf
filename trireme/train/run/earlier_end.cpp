#include "trireme/train/run/internal/earlier_end.h"

#include <algorithm>
#include <filesystem>
#include <string>

#include "trireme/base/bounded_file.h"
#include "trireme/base/error.h"
#include "trireme/telemetry/run_summary.h"
#include "trireme/train/run/internal/on_main.h"

namespace trireme::train {
namespace {

constexpr std::uint64_t kMaxSummaryBytes = std::uint64_t{1} << 20;

RunResult result_of(const telemetry::Record& summary, const std::filesystem::path& folder) {
  const auto whole = [&](const char* name) {
    constexpr double kMost = 9e15;  // exact as a double
    return static_cast<std::int64_t>(std::clamp(summary.number(name, 0), 0.0, kMost));
  };
  return {.status = summary.words("status"),
          .folder = folder,
          .world_size = static_cast<int>(whole("world_size")),
          .steps = whole("steps"),
          .evaluation = std::nullopt,
          .train_loss = summary.number("train_loss", 0),
          .samples_per_s = summary.number("samples_per_s", 0),
          .checkpoint_stall_s = summary.number("checkpoint_stall_s", 0),
          .wall_s = summary.number("wall_s", 0),
          .peak_rss_bytes = static_cast<std::uint64_t>(whole("peak_rss_bytes")),
          .weights_xxh3 = summary.words("weights_xxh3")};
}

}  // namespace

std::optional<RunResult> earlier_end_of(const Trainer& trainer, comm::Context& context,
                                        const RunFolder& folder) {
  if (!trainer.finished()) return std::nullopt;
  std::string content;
  on_main(context, [&] {
    if (std::filesystem::exists(folder.summary()))
      content = read_bounded_file(folder.summary(), kMaxSummaryBytes, "summary of a run");
  });
  content = context.world().all_gather_text(content).front();
  if (content.empty()) return std::nullopt;
  RunResult found = result_of(telemetry::parse_summary(content, folder.summary()), folder.root);
  if (found.status != "completed" || found.steps != trainer.steps_done()) return std::nullopt;
  if (context.is_main()) {
    context.log().info("nothing to do: run '", trainer.plan().config().run.name, "' was completed after ",
                       found.steps,
                       " steps; a larger train.epochs or train.max_steps continues from "
                       "there, and without --resume it starts again");
  }
  return found;
}

std::optional<telemetry::GoodputRecord> earlier_goodput(const RunFolder& folder, const Log& log) {
  try {
    return telemetry::read_goodput(folder.goodput());
  } catch (const DataError& error) {
    log.warning(error.what(), "; the goodput of this run counts from now on");
    return std::nullopt;
  }
}

}  // namespace trireme::train
