#pragma once
// How a stream's batches are dealt to ranks, step by step: equally, or from some step on in other shares.
// Under its owner's mutex, but for slice().

#include <cstdint>
#include <map>
#include <memory>

#include "trireme/data/training_data.h"

namespace trireme::data {

class Dealing {
 public:
  /// Null: equally. Two steps that are dealt alike since the same set() have the same pointer.
  using Dealt = std::shared_ptr<const Shares>;

  explicit Dealing(const StreamOptions& options) : options_(options) {}

  /// Throws InvalidArgument as BatchStream::deal does. `consumed`: steps that have been handed over.
  void set(std::uint64_t from, const Shares& shares, std::uint64_t consumed);
  Dealt at(std::uint64_t step) const;
  /// This rank's share of a batch of StreamOptions::global_batch samples.
  std::int64_t share(std::uint64_t step) const;
  /// Nobody asks for those any more.
  void forget_before(std::uint64_t step);
  void reset() { changes_.clear(); }

  /// Of the places of that batch, from 0 on, those of this rank's micro-batch `part`. Where full batches are
  /// smaller than later ones the shares of those are taken in proportion; what is left at the end of an epoch
  /// is dealt equally. Thread-safe.
  Slice slice(const Dealt& dealt, const BatchPlace& batch, std::int64_t part) const;

 private:
  const StreamOptions options_;
  std::map<std::uint64_t, Dealt> changes_;  ///< by the step from which they hold
};

}  // namespace trireme::data
