#include "trireme/topology/all_reduce_cost.h"

#include <algorithm>
#include <bit>

#include "trireme/base/error.h"

namespace trireme::topology {
namespace {

int floor_log2(int n) { return std::bit_width(static_cast<unsigned>(n)) - 1; }
int ceil_log2(int n) { return std::bit_width(static_cast<unsigned>(n - 1)); }

/// Halving and doubling among 2^k ranks, and the fold of the other ranks into them.
double halving_doubling_s(int ranks, double bytes, const MessageCost& cost) {
  const int steps = floor_log2(ranks);
  const double share = 1 - 1.0 / static_cast<double>(1 << steps);
  const double core = 2 * steps * cost.alpha_s + 2 * share * bytes * cost.beta_s_per_byte +
                      share * bytes * cost.gamma_s_per_byte;
  if (ranks == 1 << steps) return core;
  return core + 2 * cost.alpha_s + bytes * (2 * cost.beta_s_per_byte + cost.gamma_s_per_byte);
}

}  // namespace

const std::vector<Algorithm>& algorithms() {
  static const std::vector<Algorithm> kAll = {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kTree,
                                              Algorithm::kDirect, Algorithm::kTwoShot};
  return kAll;
}

std::string name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kHalvingDoubling:
      return "halving_doubling";
    case Algorithm::kTree:
      return "tree";
    case Algorithm::kDirect:
      return "direct";
    case Algorithm::kTwoShot:
      return "two_shot";
    case Algorithm::kLevels:
      return "levels";
  }
  throw InternalError("an algorithm without a name");
}

Algorithm parse_algorithm(std::string_view name) {
  std::vector<std::string> known;
  std::vector<Algorithm> all = algorithms();
  all.push_back(Algorithm::kLevels);
  for (const Algorithm each : all) {
    if (name_of(each) == name) return each;
    known.push_back(name_of(each));
  }
  throw InvalidArgument(text("there is no algorithm '", name, "'", suggest(name, known)));
}

std::string formula_of(Algorithm algorithm, int ranks) {
  switch (algorithm) {
    case Algorithm::kRing:
      return "2(n-1)a + 2(n-1)/n Sb + (n-1)/n Sc";
    case Algorithm::kHalvingDoubling:
      return std::has_single_bit(static_cast<unsigned>(ranks))
                 ? "2 log2(n) a + 2(n-1)/n Sb + (n-1)/n Sc"
                 : "2 log2(p) a + 2(p-1)/p Sb + (p-1)/p Sc + 2a + 2Sb + Sc";
    case Algorithm::kTree:
      return "2 ceil(log2 n)(a + Sb) + ceil(log2 n) Sc";
    case Algorithm::kDirect:
      return "a + (n-1)S(b + c)";
    case Algorithm::kTwoShot:
      return "2a + 2(n-1)/n Sb + (n-1)/n Sc";
    case Algorithm::kLevels:
      return "4a + 2(n-1)/n Sb + (n-1)/n Sc";
  }
  throw InternalError("an algorithm without a formula");
}

double all_reduce_s(Algorithm algorithm, int ranks, double bytes, const MessageCost& cost) {
  require(ranks >= 1, "an all-reduce of ", ranks, " ranks: expected at least one");
  if (ranks == 1) return 0;
  const double others = ranks - 1;
  const double share = others / ranks;
  switch (algorithm) {
    case Algorithm::kRing:
      return 2 * others * cost.alpha_s + 2 * share * bytes * cost.beta_s_per_byte +
             share * bytes * cost.gamma_s_per_byte;
    case Algorithm::kHalvingDoubling:
      return halving_doubling_s(ranks, bytes, cost);
    case Algorithm::kTree:
      return 2 * ceil_log2(ranks) * (cost.alpha_s + bytes * cost.beta_s_per_byte) +
             ceil_log2(ranks) * bytes * cost.gamma_s_per_byte;
    case Algorithm::kDirect:
      return cost.alpha_s + others * bytes * (cost.beta_s_per_byte + cost.gamma_s_per_byte);
    case Algorithm::kTwoShot:
      return 2 * cost.alpha_s + share * bytes * (2 * cost.beta_s_per_byte + cost.gamma_s_per_byte);
    case Algorithm::kLevels:  // two levels, over equal links
      return 4 * cost.alpha_s + share * bytes * (2 * cost.beta_s_per_byte + cost.gamma_s_per_byte);
  }
  throw InternalError("an algorithm without a cost");
}

std::vector<Estimate> estimate_all_reduce(int ranks, double bytes, const MessageCost& cost) {
  std::vector<Estimate> result;
  for (const Algorithm each : algorithms()) result.push_back({each, all_reduce_s(each, ranks, bytes, cost)});
  std::ranges::stable_sort(result, {}, &Estimate::seconds);
  return result;
}

}  // namespace trireme::topology
