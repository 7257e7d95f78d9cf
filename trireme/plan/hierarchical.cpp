// The hierarchical optimizer of PipeDream (SOSP 2019, section 3.1, "A^k(i -> j, m)"). Innermost level first,
// it finds the best pipeline over the groups of the level below. Each of these groups counts as one worker.

#include <algorithm>
#include <limits>

#include "trireme/plan/internal/partitioning.h"

namespace trireme::plan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The best time between two cuts for every number of workers of one level.
class LevelTimes {
 public:
  LevelTimes(std::size_t num_origins, std::size_t num_cuts, std::size_t num_workers)
      : num_cuts_(num_cuts),
        num_workers_(num_workers),
        times_(num_origins * num_cuts * num_workers, kInfinity) {}

  /// One time per number of workers, from 1.
  double* row(std::size_t from, std::size_t to) {
    return times_.data() + (from * num_cuts_ + to) * num_workers_;
  }
  double at(std::size_t from, std::size_t to, std::size_t workers) const {
    return times_[(from * num_cuts_ + to) * num_workers_ + workers - 1];
  }

 private:
  std::size_t num_cuts_, num_workers_;
  std::vector<double> times_;
};

/// A stage of one level: its replicas on that level, without the stages inside a replica.
struct Block {
  std::size_t from = 0, to = 0;
  Replication replication;
};

class HierarchicalOptimizer {
 public:
  HierarchicalOptimizer(const Profile& profile, const PlanOptions& options, Links links)
      : profile_(profile), options_(options), links_(links) {}

  std::vector<Stage> solve() {
    for (std::size_t level = 0; level < options_.levels.size(); ++level) {
      // A pipeline of the outermost level begins at the first layer. One of an inner level may begin
      // anywhere.
      const bool is_last = level + 1 == options_.levels.size();
      const std::size_t num_origins = is_last ? 1 : profile_.last_cut();
      times_.emplace_back(num_origins, profile_.last_cut() + 1, options_.levels[level].num_workers);
      for (std::size_t from = 0; from < num_origins; ++from) fill(level, from);
    }
    const std::size_t top = options_.levels.size() - 1;
    return stages_of(top, 0, profile_.last_cut());
  }

 private:
  std::size_t max_replicas(std::size_t level) const {
    return options_.straight ? 1 : options_.levels[level].num_workers;
  }

  /// Time of one worker of this level, which is a whole group of the level below.
  double worker_s(std::size_t level, std::size_t from, std::size_t to) const {
    if (level == 0) return profile_.between(from, to).compute_s;
    return times_[level - 1].at(from, to, options_.levels[level - 1].num_workers);
  }

  Block block(std::size_t level, std::size_t from, std::size_t to, std::size_t replicas) const {
    return {.from = from,
            .to = to,
            .replication = {.replicas = replicas,
                            .parameter_bytes = profile_.between(from, to).parameter_bytes,
                            .bandwidth_bytes_per_s = options_.levels[level].bandwidth_bytes_per_s,
                            .carriers = 1}};
  }

  /// The first stage of a pipeline. As in the published optimizer, only its reduction is spread over the
  /// workers of the level below; those of later stages are not. So its results are reproduced.
  Block first_block(std::size_t level, std::size_t from, std::size_t to, std::size_t replicas) const {
    Block first = block(level, from, to, replicas);
    if (level > 0) first.replication.carriers = options_.levels[level - 1].num_workers;
    return first;
  }

  double block_s(std::size_t level, const Block& block) const {
    return replicated_s(worker_s(level, block.from, block.to), block.replication);
  }

  /// The link after a cut of this level.
  double link_s(std::size_t level, std::size_t cut) const {
    if (links_ == Links::kFree) return 0;
    return transfer_s(profile_.output_bytes(cut), options_.levels[level].bandwidth_bytes_per_s);
  }

  /// All pipelines that begin at `from`: one stage with m replicas, or A(to, m) = min over cut k and replicas
  /// m' of max(A(k, m - m'), link(k), T(k -> to, m')).
  void fill(std::size_t level, std::size_t from) {
    const std::size_t workers = options_.levels[level].num_workers;
    for (std::size_t to = from + 1; to <= profile_.last_cut(); ++to) {
      if (!profile_.is_before(from, to)) continue;
      double* best = times_[level].row(from, to);
      for (std::size_t m = 1; m <= max_replicas(level); ++m)
        best[m - 1] = block_s(level, first_block(level, from, to, m));
      for (std::size_t cut = from + 1; cut < to; ++cut) {
        if (!profile_.is_before(from, cut) || !profile_.is_before(cut, to)) continue;
        const double* before = times_[level].row(from, cut);
        for (std::size_t last = 1; last <= std::min(max_replicas(level), workers - 1); ++last) {
          const double last_s = std::max(link_s(level, cut), block_s(level, block(level, cut, to, last)));
          for (std::size_t m = last; m < workers; ++m)
            best[m] = std::min(best[m], std::max(before[m - last], last_s));
        }
      }
    }
  }

  /// The stages of an entry of the table: repeats its choices, from the end.
  std::vector<Block> blocks_of(std::size_t level, std::size_t from, std::size_t to) const {
    std::vector<Block> blocks;
    std::size_t workers = options_.levels[level].num_workers;
    while (to != from) {
      const Block last = last_block(level, from, to, workers);
      blocks.push_back(last);
      to = last.from;
      workers -= last.replication.replicas;
    }
    std::reverse(blocks.begin(), blocks.end());
    return blocks;
  }

  Block last_block(std::size_t level, std::size_t from, std::size_t to, std::size_t workers) const {
    Block best;
    double best_s = kInfinity;
    const auto consider = [&](const Block& candidate, double before_s) {
      const double candidate_s = std::max(before_s, block_s(level, candidate));
      if (candidate_s >= best_s) return;
      best = candidate;
      best_s = candidate_s;
    };
    if (workers <= max_replicas(level)) consider(first_block(level, from, to, workers), 0);
    for (std::size_t cut = from + 1; cut < to; ++cut) {
      if (!profile_.is_before(from, cut) || !profile_.is_before(cut, to)) continue;
      for (std::size_t last = 1; last <= std::min(max_replicas(level), workers - 1); ++last)
        consider(block(level, cut, to, last),
                 std::max(times_[level].at(from, cut, workers - last), link_s(level, cut)));
    }
    return best;
  }

  /// Stages of single workers, across all levels below.
  std::vector<Stage> stages_of(std::size_t level, std::size_t from, std::size_t to) const {
    std::vector<Stage> stages;
    for (const Block& block : blocks_of(level, from, to)) {
      const Replication& replication = block.replication;
      if (!stages.empty()) {
        stages.back().transfer_s =
            transfer_s(profile_.output_bytes(block.from), replication.bandwidth_bytes_per_s);
      }
      for (Stage stage : stages_in(level, block)) {
        stage.time_s = replicated_s(stage.time_s, replication);
        stage.transfer_s /= static_cast<double>(replication.replicas);
        stage.replicas *= replication.replicas;
        stages.push_back(stage);
      }
    }
    return stages;
  }

  /// One replica of a block.
  std::vector<Stage> stages_in(std::size_t level, const Block& block) const {
    if (level > 0) return stages_of(level - 1, block.from, block.to);
    const Work work = profile_.between(block.from, block.to);
    return {{.first_state = block.from,
             .last_state = block.to - 1,
             .replicas = 1,
             .work = work,
             .time_s = work.compute_s,
             .transfer_s = 0}};
  }

  const Profile& profile_;
  const PlanOptions& options_;
  Links links_;
  std::vector<LevelTimes> times_;
};

}  // namespace

double transfer_s(double bytes, double bandwidth_bytes_per_s) { return 2 * bytes / bandwidth_bytes_per_s; }

double replicated_s(double compute_s, const Replication& replication) {
  const auto n = static_cast<double>(replication.replicas);
  const double reduction_s =
      4 * (n - 1) * replication.parameter_bytes / (replication.bandwidth_bytes_per_s * n);
  return (compute_s + reduction_s / static_cast<double>(replication.carriers)) / n;
}

std::vector<Stage> cut_hierarchically(const Profile& profile, const PlanOptions& options, Links links) {
  return HierarchicalOptimizer(profile, options, links).solve();
}

}  // namespace trireme::plan
