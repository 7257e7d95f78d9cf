#pragma once
// Links of a machine of hosts, and how long exchanges between groups of its ranks take: rings or trees within
// hosts and between them, each rank with its share of its host's links (Thakur et al., IJHPCA 19, 2005).
// Pure.

namespace trireme::train {

/// Of one direction.
struct LinkFacts {
  double latency_s = 0, bytes_per_s = 0;
};

struct LinkLevels {
  int ranks_of_host = 0;      ///< 0: not described
  LinkFacts within, between;  ///< of a rank, where all ranks of its host exchange at the same time
  /// Of ranks whose backend decides whether they have weights in one memory; else each has its own.
  bool may_share_weights = false;

  bool is_described() const { return ranks_of_host > 0; }
  /// Each rank has weights in its own memory.
  bool are_weights_own() const { return is_described() && !may_share_weights; }
};

/// Ranks at equal distances within so many consecutive ones.
struct GroupOfRanks {
  int ranks = 1, span = 1;
};

/// Of a tensor of so many bytes. All ranks of the machine exchange in groups of this kind at the same time.
double gather_s(const LinkLevels& links, const GroupOfRanks& group, double bytes);
/// A reduce-scatter, and a gather.
double all_reduce_s(const LinkLevels& links, const GroupOfRanks& group, double bytes);

}  // namespace trireme::train
