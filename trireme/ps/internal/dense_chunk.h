#pragma once
// A piece of a dense table, at most 1 MiB, with its optimizer's state. Values with another user (a reply that
// another thread sends, a snapshot) are not changed: the next update makes a copy first. One thread; results
// of share() may be read and released on any.

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/ps/ids.h"
#include "trireme/ps/internal/shared_floats.h"
#include "trireme/ps/table.h"
#include "trireme/wire/buffer.h"

namespace trireme::ps {

class DenseChunk {
 public:
  DenseChunk(const TableSpec& spec, std::uint64_t chunk);

  /// `base`: the values at which the gradient was computed, where its delay is to be compensated.
  void update(const TableSpec& spec, std::span<const float> gradient, std::span<const float> base, double lr,
              Version version);
  /// As a new one with these values.
  void assign(const TableSpec& spec, std::span<const float> values, Version version);

  std::span<const float> values() const { return values_.get(); }
  std::span<const float> state() const { return state_.get(); }
  Version changed_at() const { return changed_at_; }
  std::uint64_t num_updates() const { return num_updates_; }
  /// The values of this moment, without a copy.
  wire::Buffer share() const { return values_.lease(); }
  wire::Buffer share_state() const { return state_.lease(); }
  /// Values and optimizer state one after the other.
  std::vector<std::byte> flat() const;
  /// Whether `bytes` were of such a chunk.
  bool restore(std::span<const std::byte> bytes, Version changed_at, std::uint64_t num_updates);

 private:
  SharedFloats values_, state_;
  Version changed_at_ = 0;
  std::uint64_t num_updates_ = 0;
};

}  // namespace trireme::ps
