#include "trireme/topology/all_reduce_choice.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/median.h"

namespace trireme::topology {
namespace {

// As in the probe of links (match.cpp): messages grow until one takes clearly longer than a small one. The
// total time is limited to some latencies, because each message costs a long link several.
constexpr double kLongEnough_s = 0.002;
constexpr double kPatience_s = 0.03;
constexpr double kPatienceInAlphas = 10;
constexpr std::size_t kFirstBytes = 64 << 10;
constexpr std::size_t kMostBytes = 4 << 20;
constexpr double kSmallBytes = 1024;
// An operation that takes longer is not repeated.
constexpr double kRepeats_s = 0.02;
constexpr int kMaxRepeats = 15;
// Algorithms whose times are within this factor are compared by more than one operation.
constexpr double kNear = 2;
constexpr int kMinOfNear = 4;
// A link with at least this latency is long.
constexpr double kLongLink_s = 0.001;
// Bytes of each rank for the measurement of lanes: a piece for every lane between any two ranks. Lanes are
// used if they reduce the time to this factor.
constexpr std::size_t kBytesForLanes = 256 << 10;
constexpr double kWorthIt = 0.85;
// Every list with a shorter estimate is tried, and the best two in any case.
constexpr double kCheap_s = 0.005;

class Measurement {
 public:
  Measurement(Exchange& exchange, const OtherAllReduce& other, const SetLanes& set_lanes,
              const Deadline& deadline)
      : exchange_(exchange), other_(other), set_lanes_(set_lanes), deadline_(deadline) {}
  AllReduceChoice measure();

 private:
  double alpha_s();
  void measure_beta();
  void choose_lanes();
  void compare(double bytes);
  double reduce_s(std::optional<Algorithm> algorithm, double bytes);
  double agreed(double mine);
  std::vector<double> agreed(std::vector<double> mine);
  int repeats(double once_s) const {
    return static_cast<int>(std::clamp(kRepeats_s / std::max(once_s, 1e-6), 1.0, double{kMaxRepeats}));
  }

  Exchange& exchange_;
  const OtherAllReduce& other_;
  const SetLanes& set_lanes_;
  const Deadline& deadline_;
  AllReduceChoice choice_;
  double largest_bytes_ = 0;
  std::vector<float> values_;
};

/// The maximum over all ranks: an all-reduce ends when it has ended on all ranks.
std::vector<double> Measurement::agreed(std::vector<double> mine) {
  exchange_.all_reduce({.algorithm = Algorithm::kDirect,
                        .element = wire::Element::kF64,
                        .reduction = wire::Reduction::kMax,
                        .data = std::as_writable_bytes(std::span(mine))},
                       deadline_);
  return mine;
}
double Measurement::agreed(double mine) { return agreed(std::vector{mine}).front(); }

double Measurement::reduce_s(std::optional<Algorithm> algorithm, double bytes) {
  values_.assign(static_cast<std::size_t>(bytes) / sizeof(float), 0.0f);
  const double began_s = now_s();
  if (algorithm) {
    exchange_.all_reduce({.algorithm = *algorithm, .data = std::as_writable_bytes(std::span(values_))},
                         deadline_);
  } else {
    other_(values_);
  }
  return now_s() - began_s;
}

/// Latency by the direct algorithm, which waits for one message only.
double Measurement::alpha_s() {
  const double first_s = agreed(reduce_s(Algorithm::kDirect, sizeof(float)));  // also wakes all ranks
  std::vector<double> times;
  for (int i = repeats(first_s); i >= 0; --i) times.push_back(reduce_s(Algorithm::kDirect, sizeof(float)));
  return agreed(median(times));
}

/// Over the ring, which keeps every connection busy in both directions.
void Measurement::measure_beta() {
  const double ranks = exchange_.size();
  const double messages = 2 * (ranks - 1);
  const double enough_s = std::max(kPatience_s, kPatienceInAlphas * choice_.cost.alpha_s);
  double spent_s = 0;
  for (std::size_t bytes = kFirstBytes;; bytes *= 4) {
    largest_bytes_ = static_cast<double>(bytes);
    // The first message of a size also sets up the connection for it.
    const double first_s = agreed(reduce_s(Algorithm::kRing, largest_bytes_));
    spent_s += first_s;
    double took_s = first_s;
    if (spent_s < enough_s) {
      took_s = std::min(took_s, agreed(reduce_s(Algorithm::kRing, largest_bytes_)));
      spent_s += took_s;
    }
    const double on_the_way_s = std::max(took_s - messages * choice_.cost.alpha_s, took_s / 10);
    choice_.cost.beta_s_per_byte = on_the_way_s / (messages / ranks * largest_bytes_);
    if (on_the_way_s >= std::max(kLongEnough_s, messages * choice_.cost.alpha_s) || spent_s >= enough_s ||
        bytes == kMostBytes)
      return;
  }
}

void Measurement::choose_lanes() {
  choice_.lanes = exchange_.num_lanes();
  if (!set_lanes_ || choice_.cost.alpha_s < kLongLink_s) return;
  const auto bytes = static_cast<double>(kBytesForLanes) * exchange_.size();
  const auto took_s = [&] {
    reduce_s(Algorithm::kTwoShot, bytes);  // makes connections ready
    return agreed(reduce_s(Algorithm::kTwoShot, bytes));
  };
  const double by_one_s = took_s();
  set_lanes_(kManyLanes);
  if (took_s() > kWorthIt * by_one_s) set_lanes_(choice_.lanes);
  choice_.lanes = exchange_.num_lanes();
}

void Measurement::compare(double bytes) {
  std::vector<std::optional<Algorithm>> ways;
  for (const Estimate& each : estimate_all_reduce(choice_.ranks, bytes, choice_.cost)) {
    if (ways.size() < 2 || each.seconds < kCheap_s) ways.push_back(each.algorithm);
  }
  if (exchange_.levels().sizes.size() > 1) ways.push_back(Algorithm::kLevels);
  if (other_) ways.push_back({});
  std::vector<double> times_s;
  for (const auto& way : ways) times_s.push_back(reduce_s(way, bytes));
  times_s = agreed(times_s);
  const double best_s = *std::ranges::min_element(times_s);
  for (std::size_t i = 0; i < ways.size(); ++i) {
    // The first run has set up connections and memory. It counts only if it is too long to be repeated.
    std::vector<double> more_s;
    const int least = times_s[i] < kNear * best_s ? kMinOfNear : 1;
    for (int left = std::max(repeats(times_s[i]), least); left > 1; --left)
      more_s.push_back(reduce_s(ways[i], bytes));
    if (!more_s.empty()) times_s[i] = median(more_s);
  }
  times_s = agreed(times_s);
  AllReduceChoice::Comparison comparison{.bytes = bytes, .lists = {}};
  for (std::size_t i = 0; i < ways.size(); ++i) {
    if (ways[i]) comparison.lists.push_back({*ways[i], times_s[i]});
  }
  if (other_) comparison.other_s = times_s.back();
  choice_.comparisons.push_back(comparison);
}

AllReduceChoice Measurement::measure() {
  choice_.ranks = exchange_.size();
  choice_.cost.alpha_s = alpha_s();
  choose_lanes();
  measure_beta();
  for (double bytes = kSmallBytes; bytes < largest_bytes_; bytes *= 64) compare(bytes);
  compare(largest_bytes_);
  return choice_;
}

}  // namespace

std::optional<Algorithm> AllReduceChoice::of(double bytes) const {
  if (forced) return forced;
  if (comparisons.empty()) return estimate_all_reduce(ranks, bytes, cost).front().algorithm;
  const auto nearest = std::ranges::min_element(comparisons, {}, [&](const Comparison& each) {
    return std::abs(std::log(each.bytes) - std::log(std::max(bytes, 1.0)));
  });
  const auto& lists = nearest->lists;
  const double fastest_s = std::ranges::min_element(lists, {}, &Estimate::seconds)->seconds;
  if (nearest->other_s && *nearest->other_s < fastest_s) return {};
  const auto corrected_s = [&](const Estimate& each) {
    const double by_formula_s = all_reduce_s(each.algorithm, ranks, nearest->bytes, cost);
    return all_reduce_s(each.algorithm, ranks, bytes, cost) * each.seconds / by_formula_s;
  };
  return std::ranges::min_element(lists, {}, corrected_s)->algorithm;
}

AllReduceChoice measure_choice(Exchange& exchange, const OtherAllReduce& other, const SetLanes& set_lanes,
                               const Deadline& deadline) {
  return Measurement(exchange, other, set_lanes, deadline).measure();
}

}  // namespace trireme::topology
