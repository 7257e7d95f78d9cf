#pragma once
// Gradients of micro-batches added up in an order that depends on nothing but their number: a binary tree
// over the micro-batches of all replicas, those of a replica side by side. Whoever cuts a batch into the same
// micro-batches has the bits of the same sum, whatever of them one rank computes. It costs a copy of the
// gradients for each level of the tree that is under way, and receives all replicas' sums. One thread.

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/optim/optimizer.h"

namespace trireme::parallel {

class ExactSum {
 public:
  /// Of the gradients of `leaves`, which have their whole sizes; `data`: the ranks with the same leaves and
  /// as many other micro-batches, in the order of their ranks. Each has a power of two of them.
  ExactSum(std::optional<comm::Group> data, const optim::NamedTensors& leaves);

  /// What an error has left is forgotten.
  void begin() { sums_.clear(); }
  /// Takes the gradients, which are those of that micro-batch of this replica, from the leaves.
  void add(int microbatch);
  /// Adds the sums of all replicas to the leaves' gradients. A leaf that no micro-batch has reached has none.
  /// Collective.
  void finish();
  /// Seconds for which finish() has waited for other replicas so far.
  double waited_s() const { return waited_s_; }

 private:
  using Gradients = std::vector<at::Tensor>;  ///< of the leaves, in their order; some may be undefined
  using Node = std::pair<int, int>;           ///< level above the micro-batches, number in the level

  void put(Node node, Gradients gradients);
  Gradients take_root();
  void add_replicas(Gradients& sums);
  void add_replicas(const std::vector<at::Tensor>& pack);

  std::optional<comm::Group> data_;
  struct Leaf {
    at::Tensor tensor;
    std::vector<std::int64_t> sizes;  ///< of the whole, whose memory may be elsewhere
  };
  std::vector<Leaf> leaves_;        ///< that learn
  std::map<Node, Gradients> sums_;  ///< whose sibling is not there yet
  double waited_s_ = 0;
};

/// The sum of the numbers as the tree adds them. What is missing at the end counts as zero.
double exact_sum(std::vector<double> values);

}  // namespace trireme::parallel
