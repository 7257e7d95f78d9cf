#pragma once
// Selects the rows of the table of modes that run. Any two values that occur together in a row of the table
// occur together in a selected row (a covering array of strength two; D. M. Cohen et al., "The AETG System",
// IEEE TSE 23, 1997). A row without a new pair of values is redundant. Pure functions.

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/multiproc/mode_table.h"
#include "trireme/base/text.h"

namespace trireme::test {

/// A property in which modes differ.
struct Factor {
  const char* name;
  std::string (*value_of)(const Mode&);
  /// Whether the mode's value runs code that depends on where tensors are stored. Null: no value does.
  bool (*is_of_device)(const Mode&) = nullptr;
};

inline int replicas_of(const Mode& mode) { return mode.ranks / mode.stages / mode.tensor / mode.context; }

/// Each field of Mode except those that name the row. The number of replicas replaces the number of ranks.
constexpr auto kFactors = std::to_array<Factor>({
    {"replicas", [](const Mode& mode) { return text(replicas_of(mode)); }},
    {"accumulation", [](const Mode& mode) { return text(mode.accumulation); }},
    {"backend", [](const Mode& mode) { return text(mode.backend); }},
    {"compression", [](const Mode& mode) { return text(mode.compression); },
     [](const Mode& mode) { return std::string_view(mode.compression) != "none"; }},
    {"equal", [](const Mode& mode) { return text(static_cast<int>(mode.equal)); }},
    {"ranks_per_host", [](const Mode& mode) { return text(mode.ranks_per_host); }},
    {"stages", [](const Mode& mode) { return text(mode.stages); },
     [](const Mode& mode) { return mode.stages > 1; }},
    {"tensor", [](const Mode& mode) { return text(mode.tensor); }},
    {"precision", [](const Mode& mode) { return text(mode.precision); },
     [](const Mode& mode) { return std::string_view(mode.precision) != "fp32"; }},
    {"zero", [](const Mode& mode) { return text(mode.zero); },
     [](const Mode& mode) { return mode.zero == 3; }},
    {"shard_ranks", [](const Mode& mode) { return text(mode.shard_ranks); }},
    {"persistent_below", [](const Mode& mode) { return text(mode.persistent_below); }},
    {"keep_gradients", [](const Mode& mode) { return text(mode.keep_gradients); }},
    {"clip_norm", [](const Mode& mode) { return text(mode.clip_norm); }},
    {"recomputed", [](const Mode& mode) { return text(mode.recomputed); }},
    {"context", [](const Mode& mode) { return text(mode.context); }},
    {"state_in", [](const Mode& mode) { return text(mode.state_in); },
     [](const Mode& mode) { return std::string_view(mode.state_in) != "none"; }},
    {"shards_in", [](const Mode& mode) { return text(mode.shards_in); },
     [](const Mode& mode) { return std::string_view(mode.shards_in) != "none"; }},
    {"activations_in", [](const Mode& mode) { return text(mode.activations_in); },
     [](const Mode& mode) { return std::string_view(mode.activations_in) != "none"; }},
    {"optimizer", [](const Mode& mode) { return text(mode.optimizer); },
     [](const Mode& mode) { return *mode.optimizer != '\0'; }},
    {"lr", [](const Mode& mode) { return text(mode.lr); }},
});

/// The mesh axes with several ranks. On the host, each set of axes also counts as a value.
constexpr Factor kAxes{"axes", [](const Mode& mode) {
                         return text(replicas_of(mode) > 1 ? "dp " : "", mode.stages > 1 ? "pp " : "",
                                     mode.tensor > 1 ? "tp " : "", mode.context > 1 ? "cp " : "");
                       }};

/// Which pairs of values must occur together.
enum class Pairs {
  kAll,       ///< of two factors, or of one and the axes
  kOfDevice,  ///< of two factors, one of whose values runs code that depends on where tensors are stored
};

/// A row as numbers: pairs of values, each below `num_pairs`.
struct PairTable {
  std::vector<std::vector<std::size_t>> rows;
  std::size_t num_pairs = 0;
};

inline PairTable pairs_of(const std::vector<Mode>& modes, Pairs pairs) {
  std::vector<Factor> factors(kFactors.begin(), kFactors.end());
  if (pairs == Pairs::kAll) factors.push_back(kAxes);
  std::map<std::pair<std::size_t, std::string>, std::size_t> numbers;
  std::vector<std::vector<std::size_t>> values;
  for (const Mode& mode : modes) {
    auto& row = values.emplace_back();
    for (std::size_t f = 0; f < factors.size(); ++f)
      row.push_back(numbers.try_emplace({f, factors[f].value_of(mode)}, numbers.size()).first->second);
  }
  PairTable table{.rows = {}, .num_pairs = numbers.size() * numbers.size()};
  for (std::size_t r = 0; r < modes.size(); ++r) {
    auto& row = table.rows.emplace_back();
    const auto counts = [&](std::size_t f) {
      return pairs == Pairs::kAll || (factors[f].is_of_device && factors[f].is_of_device(modes[r]));
    };
    for (std::size_t f = 0; f < factors.size(); ++f) {
      for (std::size_t g = 0; g < f; ++g) {
        if (counts(f) || counts(g)) row.push_back(values[r][f] * numbers.size() + values[r][g]);
      }
    }
  }
  return table;
}

/// Rows of `modes`, in their order, that contain all its pairs. Greedy: repeatedly adds the row with most
/// missing pairs. Rows that later ones made redundant are removed.
inline std::vector<Mode> rows_that_cover(const std::vector<Mode>& modes, Pairs pairs) {
  const PairTable table = pairs_of(modes, pairs);
  std::vector<int> times(table.num_pairs, 0);  // number of chosen rows with the pair
  const auto num_with = [&](std::size_t row, int at_most) {
    return std::count_if(table.rows[row].begin(), table.rows[row].end(),
                         [&](std::size_t pair) { return times[pair] <= at_most; });
  };
  const auto add = [&](std::size_t row, int change) {
    for (const std::size_t pair : table.rows[row]) times[pair] += change;
  };
  std::vector<std::size_t> chosen;
  for (;;) {
    std::size_t best = 0;
    std::ptrdiff_t most = 0;
    for (std::size_t row = 0; row < modes.size(); ++row) {
      if (const auto missing = num_with(row, 0); missing > most)
        std::tie(best, most) = std::pair(row, missing);
    }
    if (most == 0) break;
    chosen.push_back(best);
    add(best, 1);
  }
  std::erase_if(chosen, [&](std::size_t row) {
    const bool superfluous = num_with(row, 1) == 0;
    if (superfluous) add(row, -1);
    return superfluous;
  });
  std::sort(chosen.begin(), chosen.end());
  std::vector<Mode> rows;
  for (const std::size_t row : chosen) rows.push_back(modes[row]);
  return rows;
}

}  // namespace trireme::test
