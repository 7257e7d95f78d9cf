#pragma once
// Finds replicas that have drifted apart: ranks compare digests of the tensors that ought to have the same
// bits on all of them. A forward that writes its parameters (embedding max_norm, spectral norm, weight
// standardisation) or an update that not every rank makes is otherwise silent.
//
//   parallel::ReplicaCheck check(context.world(), {{"head.weight", head->weight}, ...});
//   for (...) {
//     ...
//     if (step % 100 == 0) check.run(text("step ", step));
//   }
//
// Collective: all ranks of the group make it and call the same methods in the same order. One thread.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/optim/optimizer.h"

namespace trireme::parallel {

class ReplicaCheck {
 public:
  /// Tensors of the same name are compared, on those ranks that list the name: ranks may list different ones.
  /// Tensors that only one rank lists are not read. The names are exchanged once. `advice` ends the message
  /// of an error. Throws InvalidArgument: a name that is listed twice.
  ReplicaCheck(comm::Group group, optim::NamedTensors tensors, std::string advice = "");

  /// start(), then finish(). Throws as finish() does.
  void run(const std::string& when);
  /// Reads the tensors once, and starts an exchange of one number for each set of ranks that hold the same
  /// names. Nothing where no two ranks do.
  void start();
  /// Waits for the comparison of start(). Throws CommError, with the same text on every rank, where values
  /// differ: the first tensor of the list that does, and the ranks with equal values of it. The group stays
  /// usable, and so does the check once the values are the same again. Throws InvalidArgument where start()
  /// has not returned since the last finish().
  void finish(const std::string& when);

 private:
  /// Of a name that several ranks list.
  struct Label {
    std::string name;
    std::size_t holders;  ///< number of the set of ranks
  };
  /// One that this rank lists.
  struct Mine {
    std::size_t label;
    at::Tensor tensor;
  };

  std::vector<std::vector<std::string>> names_of_ranks(const optim::NamedTensors& tensors);
  bool holds(int rank, std::size_t set) const;
  std::size_t most_of_a_rank(const std::vector<std::size_t>& sets) const;
  std::vector<std::int64_t> words_of_sets() const;
  bool is_same_everywhere(const at::Tensor& words) const;
  [[noreturn]] void throw_difference(const std::string& when);

  comm::Group group_;
  const std::string advice_;
  std::vector<Label> labels_;              ///< in the order of the lists, the first rank's first
  std::vector<std::vector<int>> holders_;  ///< ranks of the group, by set
  std::vector<Mine> mine_;                 ///< in the order of the labels
  std::vector<std::int64_t> digests_;      ///< of these, by start()
  at::Tensor word_, words_;                ///< of this rank's sets, and of all ranks' while they go round
  comm::Pending pending_;
};

}  // namespace trireme::parallel
