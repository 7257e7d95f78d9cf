// Asynchronous pipelines, without a flush. A stage steps while other micro-batches are in flight, so several
// versions of its weights exist. Program::versions defines the version that a micro-batch uses.
// - PipeDream: 1F1B, a STEP after every backward, weights stashed from forward to backward; stage s has
//   p - s versions. Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP
//   2019, sections 3.2 and 3.3.
// - 1F1B-RR: the same with several replicas of a stage; micro-batch k goes to replica k mod r, forward and
//   backward. Warm-up of a rank: ranks after its stage / replicas of its stage (msr-fiddle/pipedream).
// - PipeDream-2BW: two versions; a STEP after every `update_every` backwards. Narayanan et al.,
//   "Memory-Efficient Pipeline-Parallel DNN Training", arXiv 2006.09503, section 3.1.

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/schedule/internal/action_list.h"
#include "trireme/schedule/internal/generators.h"
#include "trireme/schedule/schedule_table.h"

namespace trireme::schedule {
namespace {

/// A rank's program: its micro-batches in order, `warmup` forwards, then a forward and a backward in
/// alternation.
struct Part {
  int stage;
  std::vector<int> microbatches;
  int warmup;
  int update_every;
};

std::vector<Action> rank_order(const Part& part) {
  std::vector<Action> actions;
  const std::size_t total = part.microbatches.size();
  const auto warmup = std::min(total, static_cast<std::size_t>(part.warmup));
  for (std::size_t k = 0; k < warmup; ++k) actions.push_back(forward(part.stage, part.microbatches[k]));
  for (std::size_t k = 0; k < total; ++k) {
    if (warmup + k < total) actions.push_back(forward(part.stage, part.microbatches[warmup + k]));
    actions.push_back(backward(part.stage, part.microbatches[k]));
    if ((k + 1) % static_cast<std::size_t>(part.update_every) != 0) continue;
    actions.push_back({.stage = part.stage, .kind = ActionKind::kReduceGrad});
    actions.push_back({.stage = part.stage, .kind = ActionKind::kStep});
  }
  return actions;
}

/// Consecutive stages, each on as many ranks as it has replicas.
Program replicated(const ScheduleOptions& options, const std::vector<int>& replicas, int update_every) {
  const int m = options.num_microbatches;
  Program program{.name = "",
                  .num_stages = static_cast<int>(replicas.size()),
                  .num_microbatches = m,
                  .ranks = {},
                  .update_every = update_every};
  int ranks_before = 0;
  for (int stage = 0; stage < program.num_stages; ++stage) {
    const int count = replicas[static_cast<std::size_t>(stage)];
    std::vector<int>& ranks = program.replicas.emplace_back();
    for (int replica = 0; replica < count; ++replica) {
      Part part{stage, {}, (options.num_ranks - 1 - ranks_before) / count, update_every};
      for (int k = replica; k < m; k += count) part.microbatches.push_back(k);
      ranks.push_back(ranks_before + replica);
      program.ranks.push_back(rank_order(part));
    }
    ranks_before += count;
  }
  return program;
}

WeightVersions versions_of(const ScheduleOptions& options) {
  return options.vertical_sync ? WeightVersions::kVertical : WeightVersions::kStashed;
}

Program straight(const ScheduleOptions& options, int update_every) {
  const std::vector<int> one_each(static_cast<std::size_t>(options.num_ranks), 1);
  Program program = replicated(options, one_each, update_every);
  program.replicas.clear();
  return program;
}

}  // namespace

Program pipedream(const ScheduleOptions& options) {
  Program program = straight(options, 1);
  program.versions = versions_of(options);
  return program;
}

Program pipedream_2bw(const ScheduleOptions& options) {
  const int group = options.update_every > 0 ? options.update_every : options.num_ranks;
  require(group >= options.num_ranks,
          "pipedream-2bw needs at least as many micro-batches per update as ranks (", options.num_ranks,
          "), or two versions of the weights are not enough; found ", group);
  require(options.num_microbatches % group == 0, options.num_microbatches,
          " micro-batches do not fill updates of ", group, "; take a multiple");
  Program program = straight(options, group);
  program.versions = WeightVersions::kOneBehind;
  return program;
}

std::vector<int> default_replicas(int num_ranks) {
  std::vector<int> replicas(static_cast<std::size_t>(std::max(1, num_ranks - 1)), 1);
  replicas.front() = num_ranks == 1 ? 1 : 2;
  return replicas;
}

Program one_f_one_b_round_robin(const ScheduleOptions& options) {
  const std::vector<int> replicas =
      options.replicas.empty() ? default_replicas(options.num_ranks) : options.replicas;
  const std::int64_t all = std::accumulate(replicas.begin(), replicas.end(), std::int64_t{0});
  require(std::all_of(replicas.begin(), replicas.end(), [](int count) { return count >= 1; }) &&
              all == options.num_ranks,
          "1f1b-rr needs at least one replica per stage and as many in all as there are ranks (",
          options.num_ranks, "), found ", all, " in all");
  for (const int count : replicas) {
    require(options.num_microbatches % count == 0, options.num_microbatches, " micro-batches do not fill ",
            count, " replicas evenly; take a multiple");
  }
  Program program = replicated(options, replicas, 1);
  // Vertical sync numbers versions by the updates of the first stage. With replicas, stages step at different
  // times.
  require(!options.vertical_sync, "1f1b-rr stashes weights; vertical sync needs stages that step alike");
  program.versions = WeightVersions::kStashed;
  return program;
}

}  // namespace trireme::schedule
