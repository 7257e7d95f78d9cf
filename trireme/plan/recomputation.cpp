#include "trireme/plan/recomputation.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "trireme/plan/internal/kept_bytes.h"

namespace trireme::plan {
namespace {

/// A choice for the layers from some layer to the last one. Layers are added at the front, in the order of
/// backward.
struct Partial {
  double kept = 0;           ///< bytes from forward to backward, times the live micro-batches
  double given = 0;          ///< bytes of this chain's layers, once: already freed by the micro-batch
  double peak = 0;           ///< in the backwards of the layers so far
  double added_s = 0;        ///< per micro-batch
  bool keeps_input = false;  ///< of the first layer
  int choice = -1;           ///< of the first layer: index in choices_
  /// Bytes that remain during the backward of the layer before these.
  double rest() const { return kept - given; }
};

struct Choice {
  bool recomputed = false;
  int next = -1;  ///< of the next layer: index in choices_; -1: none
};

enum class Goal { kMinTime, kMinPeak };

struct Wanted {
  Goal goal = Goal::kMinTime;
  double budget_bytes = 0;
};

class Search {
 public:
  Search(std::span<const LiveChain> chains, const Wanted& wanted)
      : chains_(chains), wanted_(wanted), partials_{Partial{}} {
    for (std::size_t c = chains.size(); c-- > 0;) {
      is_last_chain_ = c == 0;
      for (Partial& partial : partials_) {
        partial.given = 0;
        partial.keeps_input = false;
      }
      for (auto layer = chains[c].layers.rbegin(); layer != chains[c].layers.rend(); ++layer)
        extend(*layer, chains[c].live);
    }
  }

  /// Null: no choice is within the budget.
  const Partial* best() const {
    const auto order = [&](const Partial& partial) {
      return wanted_.goal == Goal::kMinTime ? std::tuple(partial.added_s, partial.peak)
                                            : std::tuple(partial.peak, partial.added_s);
    };
    const auto found =
        std::min_element(partials_.begin(), partials_.end(),
                         [&](const Partial& a, const Partial& b) { return order(a) < order(b); });
    return found == partials_.end() ? nullptr : &*found;
  }

  std::vector<std::vector<bool>> choices_of(const Partial& partial) const {
    std::vector<std::vector<bool>> recomputed;
    int at = partial.choice;
    for (const LiveChain& chain : chains_) {
      auto& of_chain = recomputed.emplace_back();
      for (std::size_t i = 0; i < chain.layers.size(); ++i) {
        const Choice& choice = choices_[static_cast<std::size_t>(at)];
        of_chain.push_back(choice.recomputed);
        at = choice.next;
      }
    }
    return recomputed;
  }

 private:
  void extend(const Recomputable& layer, int live) {
    std::vector<Partial> longer;
    for (const Partial& partial : partials_) {
      for (const bool recomputed : {false, true}) {
        const double kept = kept_bytes(layer, recomputed, partial.keeps_input);
        Partial next{.kept = partial.kept + live * kept,
                     .given = partial.given + kept,
                     .peak = partial.peak + live * kept,
                     .added_s = partial.added_s + (recomputed ? layer.forward_s : 0),
                     .keeps_input = keeps_input(layer, recomputed),
                     .choice = static_cast<int>(choices_.size())};
        next.peak = std::max(next.peak, next.rest() + kept + made_again_bytes(layer, recomputed));
        if (wanted_.goal == Goal::kMinTime && next.peak > wanted_.budget_bytes) continue;
        choices_.push_back({.recomputed = recomputed, .next = partial.choice});
        longer.push_back(next);
      }
    }
    partials_ = without_worse(std::move(longer));
  }

  /// Whether `a` ends up no worse for all layers that may be added at the front of both.
  bool is_no_worse(const Partial& a, const Partial& b) const {
    return a.peak <= b.peak && a.rest() <= b.rest() && (is_last_chain_ || a.kept <= b.kept) &&
           a.keeps_input <= b.keeps_input && (wanted_.goal == Goal::kMinPeak || a.added_s <= b.added_s);
  }

  std::vector<Partial> without_worse(std::vector<Partial> partials) const {
    std::sort(partials.begin(), partials.end(), [](const Partial& a, const Partial& b) {
      return std::tuple(a.added_s, a.peak, a.kept) < std::tuple(b.added_s, b.peak, b.kept);
    });
    std::vector<Partial> left;
    for (const Partial& partial : partials) {
      if (std::none_of(left.begin(), left.end(), [&](const Partial& a) { return is_no_worse(a, partial); }))
        left.push_back(partial);
    }
    return left;
  }

  std::span<const LiveChain> chains_;
  const Wanted wanted_;
  bool is_last_chain_ = false;
  std::vector<Choice> choices_;
  std::vector<Partial> partials_;
};

}  // namespace

Recomputation cost_of(std::span<const LiveChain> chains, std::vector<std::vector<bool>> recomputed) {
  Recomputation cost{.recomputed = std::move(recomputed)};
  double all = 0;
  std::vector<std::vector<double>> kept;
  for (std::size_t c = 0; c < chains.size(); ++c) {
    const std::vector<Recomputable>& layers = chains[c].layers;
    auto& of_chain = kept.emplace_back();
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const bool is_kept_behind =
          i + 1 < layers.size() && keeps_input(layers[i + 1], cost.recomputed[c][i + 1]);
      of_chain.push_back(kept_bytes(layers[i], cost.recomputed[c][i], is_kept_behind));
      all += chains[c].live * of_chain.back();
      if (cost.recomputed[c][i]) cost.added_s += layers[i].forward_s;
    }
  }
  cost.peak_bytes = all;
  for (std::size_t c = 0; c < chains.size(); ++c) {
    double given = 0;  // freed by the micro-batch after the layer's backward
    for (std::size_t i = chains[c].layers.size(); i-- > 0;) {
      const double again = made_again_bytes(chains[c].layers[i], cost.recomputed[c][i]);
      cost.peak_bytes = std::max(cost.peak_bytes, all - given + again);
      given += kept[c][i];
    }
  }
  return cost;
}

Recomputation choose_recomputed(std::span<const LiveChain> chains, double budget_bytes) {
  const Search within(chains, {.goal = Goal::kMinTime, .budget_bytes = budget_bytes});
  if (const Partial* best = within.best()) return cost_of(chains, within.choices_of(*best));
  const Search smallest(chains, {.goal = Goal::kMinPeak, .budget_bytes = 0});
  return cost_of(chains, smallest.choices_of(*smallest.best()));
}

}  // namespace trireme::plan
