// Plans in words.
#include <algorithm>
#include <cmath>

#include "trireme/base/text.h"
#include "trireme/train/planner/plan_search.h"

namespace trireme::train {
namespace {

/// Three digits for short times, so that two that differ do not look alike.
std::string time_in_words(double seconds) {
  const double per_ms = seconds < 1e-3 ? 1000 : seconds < 1e-2 ? 100 : 10;
  return text(std::round(1e3 * seconds * per_ms) / per_ms, " ms");
}

std::string in_percent(double share) { return text(std::llround(100 * share), " %"); }

std::string size_in_words(std::int64_t bytes) { return human_bytes(static_cast<std::uint64_t>(bytes)); }

}  // namespace

std::string why_not(const PlannedStep& other, const PlannedStep& best, std::int64_t limit_bytes) {
  if (limit_bytes > 0 && other.memory_bytes > limit_bytes)
    return text("needs ", size_in_words(other.memory_bytes - limit_bytes), " more on rank ",
                other.memory_rank);
  if (other.step_s <= best.step_s * (1 + kAsFast)) return "as fast";
  const SecondsOfRank &mine = other.busiest().seconds, &fastest = best.busiest().seconds;
  struct Part {
    const char* words;
    double mine, fastest;
  };
  const Part parts[] = {
      {"computation takes ", mine.forward + mine.backward, fastest.forward + fastest.backward},
      {"updates take ", mine.update, fastest.update},
      {"exchanges take ", mine.exchange, fastest.exchange},
      {"micro-batches cost ", mine.overhead, fastest.overhead},
      {"bubbles and messages take ", mine.idle, fastest.idle}};
  const Part& most =
      *std::ranges::max_element(parts, {}, [](const Part& part) { return part.mine - part.fastest; });
  return text(in_percent(other.step_s / best.step_s - 1), " slower: ", most.words, time_in_words(most.mine),
              " instead of ", time_in_words(most.fastest));
}

std::string in_words(const RunConfig& config, int world_size) {
  const ParallelOptions& parallel = config.parallel;
  const TrainOptions& train = config.train;
  const std::int64_t others = parallel.pipeline * parallel.tensor * parallel.context;
  std::vector<std::string> words;
  if (world_size / others > 1) words.push_back(text(world_size / others, " replicas"));
  if (parallel.pipeline > 1) {
    std::string stages = text(parallel.pipeline, " ranks of stages (", parallel.schedule);
    if (parallel.chunks > 1) stages += text(", ", parallel.chunks, " chunks");
    words.push_back(stages + text(", ", parallel.microbatches, " micro-batches)"));
  }
  if (parallel.tensor > 1) words.push_back(text("tensor ", parallel.tensor));
  if (parallel.context > 1) words.push_back(text("context ", parallel.context));
  if (words.empty()) words.emplace_back("1 rank");
  std::string all = join(words, " x ");
  if (parallel.zero > 0) all += text(", zero ", parallel.zero);
  if (parallel.shard_ranks > 0) all += text(" in groups of ", parallel.shard_ranks);
  if (parallel.keep_gradients) all += ", whole gradients";
  if (config.offload.optimizer != "none") all += ", optimizer state in " + config.offload.optimizer;
  if (parallel.compression != "none") all += ", " + parallel.compression + " gradients";
  if (train.accumulation > 1) all += text(", accumulation ", train.accumulation);
  if (!train.recompute_layers.empty()) {
    const bool is_all = train.recompute_layers.front() == "*";
    all +=
        is_all ? ", all layers recomputed" : text(", ", train.recompute_layers.size(), " layers recomputed");
  }
  return all;
}

}  // namespace trireme::train
