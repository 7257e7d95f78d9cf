#pragma once
// How a stream's batches are dealt to ranks, step by step: equally, or from some step on in other shares.
// Under its owner's mutex, but for slice().

#include <cstdint>
#include <map>
#include <memory>

#include "trireme/data/training_data.h"

namespace trireme::data {

class BatchPartition {
 public:
  /// Null: equally. Two steps that are dealt alike since the same set() have the same pointer.
  using SharesInUse = std::shared_ptr<const Shares>;

  explicit BatchPartition(const StreamOptions& options) : options_(options) {}

  /// Throws InvalidArgument as BatchStream::assign_shares does. `consumed`: steps that have been handed over.
  void set(std::uint64_t from, const Shares& shares, std::uint64_t consumed);
  SharesInUse at(std::uint64_t step) const;
  /// This rank's share of a batch of StreamOptions::global_batch samples.
  std::int64_t share(std::uint64_t step) const;
  /// Earlier steps are not requested any more.
  void forget_before(std::uint64_t step);
  void reset() { changes_.clear(); }

  /// Of the places of that batch, from 0 on, those of this rank's micro-batch `part`. Where full batches are
  /// smaller than later ones the shares of those are taken in proportion; the rest at the end of an epoch is
  /// divided equally. Thread-safe.
  Slice slice(const SharesInUse& dealt, const BatchPlace& batch, std::int64_t part) const;

 private:
  const StreamOptions options_;
  std::map<std::uint64_t, SharesInUse> changes_;  ///< by the step from which they hold
};

}  // namespace trireme::data
