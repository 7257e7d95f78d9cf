#include "trireme/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/data/internal/stacked_targets.h"
#include "trireme/data/permutation.h"

namespace trireme::data {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr std::uint64_t kMixtureKey = Random::key_of("mixture");

struct MixedPart {
  std::shared_ptr<const Dataset> samples;
  std::int64_t per_epoch = 0;
  std::int64_t end = 0;  ///< end of its places in an epoch
};

class Mixture : public Dataset {
 public:
  Mixture(std::vector<MixedPart> parts, std::uint64_t seed) : parts_(std::move(parts)), seed_(seed) {}

  std::int64_t size() const override { return parts_.back().end; }
  bool sizes_vary() const override {
    return std::ranges::any_of(parts_, [](const MixedPart& part) { return part.samples->sizes_vary(); });
  }
  std::shared_ptr<const Dataset> in_epoch(std::uint64_t epoch) const override {
    auto view = std::make_shared<Mixture>(*this);
    view->epoch_ = epoch;
    return view;
  }

  Example get(std::int64_t index) const override {
    const auto [samples, number] = find(index);
    return samples->get(number);
  }
  Fields get_targets(std::span<const std::int64_t> indices) const override {
    return stacked_targets(indices, [&](std::int64_t index) {
      const auto [samples, number] = find(index);
      return target_of(*samples, number);
    });
  }
  double cost(std::int64_t index) const override {
    const auto [samples, number] = find(index);
    return samples->cost(number);
  }

 private:
  /// The part of a sample in its current pass, and the sample's number in this part.
  std::pair<std::shared_ptr<const Dataset>, std::int64_t> find(std::int64_t index) const {
    require(index >= 0 && index < size(), "sample ", index, " of ", size(), " was asked for");
    const auto part = std::ranges::upper_bound(parts_, index, {}, &MixedPart::end);
    const std::int64_t samples = part->samples->size(), in_part = index - (part->end - part->per_epoch);
    // Samples taken from the part since epoch 0. Epochs times samples may exceed 64 bits.
    const auto taken =
        static_cast<Wide>(epoch_) * static_cast<Wide>(part->per_epoch) + static_cast<Wide>(in_part);
    const auto pass = static_cast<std::uint64_t>(taken / static_cast<Wide>(samples));
    const auto place = static_cast<std::int64_t>(taken % static_cast<Wide>(samples));
    const Permutation order(samples, Random(seed_, kMixtureKey, part - parts_.begin(), pass));
    const auto in_pass = part->samples->in_epoch(pass);
    return {in_pass ? in_pass : part->samples, order[place]};
  }

  std::vector<MixedPart> parts_;
  std::uint64_t seed_, epoch_ = 0;
};

}  // namespace

std::vector<std::int64_t> shares_of(std::int64_t samples, const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (const double weight : weights)
    require(weight > 0 && std::isfinite(weight), "a weight of ", weight, " is none");
  require(std::abs(sum - 1) <= 1e-6, "the weights add up to ", std::setprecision(9), sum,
          ", and have to add up to 1");
  std::vector<std::int64_t> shares;
  std::vector<std::pair<double, std::size_t>> remainders;  // negative remainder and part, in order
  std::int64_t left = samples;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double exact = weights[i] / sum * static_cast<double>(samples);
    const auto whole = std::min(left, static_cast<std::int64_t>(std::floor(exact)));
    shares.push_back(whole);
    remainders.emplace_back(static_cast<double>(whole) - exact, i);
    left -= whole;
  }
  std::ranges::sort(remainders);
  for (std::size_t i = 0; left > 0; i = (i + 1) % remainders.size(), --left) ++shares[remainders[i].second];
  return shares;
}

std::shared_ptr<const Dataset> mixture(std::vector<std::shared_ptr<const Dataset>> parts,
                                       const std::vector<double>& weights, std::int64_t samples_per_epoch,
                                       std::uint64_t seed) {
  require(!parts.empty() && parts.size() == weights.size(), "a mixture of ", parts.size(), " parts has ",
          weights.size(), " weights; each part has one");
  require(samples_per_epoch >= 1, "an epoch of ", samples_per_epoch, " samples is none");
  const std::vector<std::int64_t> shares = shares_of(samples_per_epoch, weights);
  const Example first = parts[0]->get(0);
  std::vector<MixedPart> mixed;
  std::int64_t end = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Example other = parts[i]->get(0);
    require(batch::same_names(other.input, first.input) && batch::same_names(other.target, first.target),
            "part ", i, " of the mixture has ", batch::to_text(other.input), " and ",
            batch::to_text(other.target), ", part 0 ", batch::to_text(first.input), " and ",
            batch::to_text(first.target), "; parts have the same fields");
    end += shares[i];
    if (shares[i] > 0) mixed.push_back({.samples = std::move(parts[i]), .per_epoch = shares[i], .end = end});
  }
  return std::make_shared<Mixture>(std::move(mixed), seed);
}

}  // namespace trireme::data
