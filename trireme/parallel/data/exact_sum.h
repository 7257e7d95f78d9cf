#pragma once
// Sum of the gradients of micro-batches in an order that depends only on their number: a binary tree over the
// micro-batches of all replicas, those of a replica side by side. The same micro-batches give the same bits,
// for any assignment of them to ranks. It costs a copy of the gradients for each open level of the tree, and
// receives all replicas' sums. One thread.

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

  /// Drops the sums that an error has left.
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

/// The sum of the numbers in the order of the tree. Missing numbers at the end count as zero.
double exact_sum(std::vector<double> values);

}  // namespace trireme::parallel
