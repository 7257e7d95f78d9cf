#pragma once
// Finds pieces that get gradients and that no optimizer changes: those that a loop forgot to give to its
// optimizer. The rest of the program runs as well as before, so this is a warning, once, on each rank that has
// such pieces. Values are compared by digests, since not all optimizers of libtorch count as a version of the
// tensor. One thread.

#include <cstdint>
#include <vector>

#include "trireme/base/log.h"
#include "trireme/optim/optimizer.h"

namespace trireme::parallel {

class UpdateWatch {
 public:
  /// Reductions after which it looks: more than a loss scaler leaves updates out at its start.
  static constexpr int kReductions = 32;

  explicit UpdateWatch(Log log) : log_(std::move(log)) {}

  /// A reduction has ended, whose gradients `pieces` have. Reads all pieces after the first reduction and
  /// after number kReductions, and nothing after the others nor while a graph is captured.
  void reduced(const optim::NamedTensors& pieces);

 private:
  const Log log_;
  int reductions_ = 0;
  std::vector<std::int64_t> digests_;  ///< by piece, after the first reduction
};

}  // namespace trireme::parallel
