#include "trireme/train/parts/load_balancer.h"

#include <algorithm>
#include <numeric>

#include "trireme/base/median.h"
#include "trireme/base/mesh_axes.h"
#include "trireme/base/text.h"
#include "trireme/data/training_data.h"
#include "trireme/train/parts/internal/milliseconds.h"
#include "trireme/train/plan/internal/fixes.h"

namespace trireme::train {
namespace {

/// Fractions of the slowest replica's time: a rebalance must predict a gain of 5 % and achieve 2 %, else it
/// is undone.
constexpr double kPromised = 0.95, kKept = 0.98;
/// A replica with more than this many equal shares would need more memory than planned.
constexpr std::int64_t kMaxEqualShares = 2;
/// Ignored steps after a change: kernels are chosen and memory is allocated in them.
constexpr std::int64_t kSettling = 2;
constexpr int kMostPatience = 64;

std::int64_t sum_of(const data::Shares& shares) {
  return std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
}

}  // namespace

LoadBalancer::LoadBalancer(Options options)
    : options_(std::move(options)),
      batch_(sum_of(options_.equal)),
      most_(kMaxEqualShares * *std::ranges::max_element(options_.equal)),
      shares_(options_.equal),
      looked_at_(batch_),
      window_(options_.equal.size()) {}

std::unique_ptr<LoadBalancer> LoadBalancer::make(const ParallelPlan& plan) {
  if (plan.balance() != data::Balance::kDynamic || plan.num_replicas() == 1) return nullptr;
  Options options{.equal = data::equal_shares({.global_batch = plan.config().train.global_batch,
                                               .num_microbatches = plan.num_microbatches(),
                                               .world_size = plan.num_replicas()}),
                  .least = 0,
                  .microbatches = plan.num_microbatches()};
  // Batch norm of a single sample has no deviation if planes are one pixel.
  constexpr std::int64_t kMinOfMicrobatch = 2;
  const std::int64_t parts = plan.num_microbatches();
  options.least = parts * std::min(kMinOfMicrobatch, *std::ranges::min_element(options.equal) / parts);
  const MeshShape mesh = plan.mesh();
  const MeshShape::Fold of_samples = axes_that_share({Shared::kSamples});
  for (int rank = 0; rank < plan.world_size(); ++rank)
    options.replica.push_back(mesh.place(rank, of_samples));
  return std::make_unique<LoadBalancer>(std::move(options));
}

std::optional<LoadBalancer::Change> LoadBalancer::observe(const StepReport& report, std::int64_t from) {
  // Smaller batches at the end of an epoch are not comparable.
  if (report.samples != report.full_batch) return std::nullopt;
  if (report.full_batch != looked_at_) begin_batches_of(report.full_batch, report.step);
  if (report.step <= from_ + kSettling) return std::nullopt;
  std::vector<double> work_s = work_of_replicas(report);
  for (std::size_t replica = 0; replica < work_s.size(); ++replica)
    window_[replica].push_back(work_s[replica]);
  if (window_.front().size() < kWindow) return std::nullopt;
  for (std::size_t replica = 0; replica < work_s.size(); ++replica) {
    work_s[replica] = median(window_[replica]);
    window_[replica].clear();
  }
  return decide(work_s, from);
}

std::vector<double> LoadBalancer::work_of_replicas(const StepReport& report) const {
  std::vector<double> work_s(shares_.size(), 0);
  for (std::size_t rank = 0; rank < report.work_s.size(); ++rank) {
    double& of_replica = work_s[static_cast<std::size_t>(options_.replica[rank])];
    of_replica = std::max(of_replica, report.work_s[rank]);
  }
  return work_s;
}

/// Earlier measurements belong to other batches, and are not comparable.
void LoadBalancer::begin_batches_of(std::int64_t samples, std::int64_t step) {
  looked_at_ = samples;
  from_ = std::max(from_, step - 1);
  before_.reset();
  for (std::vector<double>& of_replica : window_) of_replica.clear();
}

data::Shares LoadBalancer::of_batch(const data::Shares& shares) const {
  return looked_at_ == batch_ ? shares : data::scaled_shares(shares, looked_at_, options_.microbatches);
}

std::optional<LoadBalancer::Change> LoadBalancer::decide(const std::vector<double>& work_s,
                                                         std::int64_t from) {
  const auto slowest = std::ranges::max_element(work_s) - work_s.begin();
  const auto at = [&](const auto& values) { return values[static_cast<std::size_t>(slowest)]; };
  if (before_ && at(work_s) > kKept * before_->slowest_s) {
    waiting_ = patience_ = std::min(2 * patience_, kMostPatience);
    const double before_s = before_->slowest_s;
    return change_to(before_->shares, from,
                     text("replicas take their earlier shares of a batch again: the slowest worked ",
                          in_ms(at(work_s)), " for a step, and before ", in_ms(before_s)));
  }
  if (before_) patience_ = 1;
  before_.reset();
  if (waiting_ > 0 && --waiting_ > 0) return std::nullopt;
  std::optional<Proposal> proposal = proposal_for(work_s);
  if (!proposal) return std::nullopt;
  const Before before{shares_, at(work_s)};
  Change change = change_to(std::move(proposal->shares), from, std::move(proposal->why));
  before_ = before;
  return change;
}

std::optional<LoadBalancer::Proposal> LoadBalancer::propose(std::span<const StepReport> window) {
  looked_at_ = window.back().full_batch;
  std::vector<std::vector<double>> of_replicas(shares_.size());
  for (const StepReport& report : window) {
    const std::vector<double> work_s = work_of_replicas(report);
    for (std::size_t i = 0; i < work_s.size(); ++i) of_replicas[i].push_back(work_s[i]);
  }
  std::vector<double> medians;
  for (std::vector<double>& of_replica : of_replicas) medians.push_back(median(std::move(of_replica)));
  return proposal_for(medians);
}

std::optional<LoadBalancer::Proposal> LoadBalancer::proposal_for(const std::vector<double>& work_s) const {
  const auto slowest = std::ranges::max_element(work_s) - work_s.begin();
  const auto at = [&](const auto& values) { return values[static_cast<std::size_t>(slowest)]; };
  data::Shares shares = in_proportion(work_s);
  const data::Shares now = of_batch(shares_), then = of_batch(shares);
  double estimated_s = 0;
  for (std::size_t i = 0; i < shares.size(); ++i)
    estimated_s =
        std::max(estimated_s, work_s[i] * static_cast<double>(then[i]) / static_cast<double>(now[i]));
  if (estimated_s > kPromised * at(work_s)) return std::nullopt;
  const double mean_s =
      std::accumulate(work_s.begin(), work_s.end(), 0.0) / static_cast<double>(work_s.size());
  std::string why = text("replica ", slowest, " takes ", at(then), " samples of a batch instead of ", at(now),
                         ": it worked ", in_ms(at(work_s)), " for a step, and the mean is ", in_ms(mean_s));
  return Proposal{.shares = std::move(shares),
                  .slowest_s = at(work_s),
                  .estimated_s = estimated_s,
                  .why = std::move(why)};
}

LoadBalancer::Change LoadBalancer::change_to(data::Shares shares, std::int64_t from, std::string why) {
  before_.reset();
  shares_ = std::move(shares);
  from_ = from;
  return {.from = from, .shares = shares_, .why = std::move(why)};
}

/// In proportion to samples per second, within the bounds, so that the shares add up to the batch.
data::Shares LoadBalancer::in_proportion(const std::vector<double>& work_s) const {
  const data::Shares now = of_batch(shares_);
  std::vector<double> speed;
  for (std::size_t i = 0; i < work_s.size(); ++i)
    speed.push_back(static_cast<double>(now[i]) / std::max(work_s[i], 1e-9));
  const auto least = static_cast<double>(options_.least), most = static_cast<double>(most_);
  const auto share = [&](double of, double factor) { return std::clamp(of * factor, least, most); };
  double low = 0, high = most / *std::ranges::min_element(speed);
  constexpr int kHalvings = 100;
  for (int i = 0; i < kHalvings; ++i) {
    const double factor = (low + high) / 2;
    double sum = 0;
    for (const double of : speed) sum += share(of, factor);
    (sum <= static_cast<double>(batch_) ? low : high) = factor;
  }
  // Rounds down. The replicas that lose most by this get the remaining samples.
  data::Shares shares;
  std::vector<std::pair<double, std::size_t>> lost;
  for (std::size_t i = 0; i < speed.size(); ++i) {
    const double exact = share(speed[i], low);
    shares.push_back(static_cast<std::int64_t>(exact));
    lost.emplace_back(exact - std::floor(exact), i);
  }
  std::ranges::stable_sort(lost, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::int64_t left = batch_ - sum_of(shares);
  for (std::size_t i = 0; left > 0; i = (i + 1) % lost.size()) {
    std::int64_t& next = shares[lost[i].second];
    if (next >= most_) continue;
    ++next;
    --left;
  }
  return shares;
}

void LoadBalancer::start_over(std::int64_t step) {
  shares_ = options_.equal;
  from_ = step;
  before_.reset();
  patience_ = 1;
  waiting_ = 0;
  for (std::vector<double>& of_replica : window_) of_replica.clear();
}

}  // namespace trireme::train
