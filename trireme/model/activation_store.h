#pragma once
// Activation offload: tensors that autograd saves for a backward are stored outside the computing memory.
// They are in a file, or, where a device computes, in the host's memory, pinned. While a Scope lives, tensors
// that this thread's operators save are stored, and their memory is freed when it has no other owner. The
// backward gets them back, with the same bits. They are written to a file while the forward continues, and
// read back before the backward needs them, from the last to the first. Tensors that a backward needs before
// they are written are taken from memory.
//
// Whole memory blocks are stored: tensors that are views of one (queries, keys and values) are transferred
// once. Small tensors stay, and so do views of memory that is much larger than they are, and a layer's
// parameters and buffers. As everywhere in autograd a saved tensor must not be changed in place before its
// backward: detected changes are rejected. docs/adr/0070.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "trireme/model/layer.h"

namespace trireme::model {

struct ActivationStoreOptions {
  std::filesystem::path folder = {};   ///< of the file; empty: the host's memory, of a device
  std::string owner = "this process";  ///< for messages: "rank 2"
  c10::Device device = c10::kCPU;      ///< whose tensors go
  std::int64_t min_bytes = 64 * 1024;  ///< smaller ones stay
  /// On their way to the file, and as many that are back before they are asked for; at least one tensor each.
  std::int64_t bytes_under_way = std::int64_t{48} << 20;
};

/// One for a rank. Graphs may outlive it. Thread-safe.
class ActivationStore {
 public:
  /// Throws InvalidArgument: the host's memory for tensors of the CPU. DataError: the folder cannot be
  /// written to.
  explicit ActivationStore(const ActivationStoreOptions& options);
  ~ActivationStore();
  ActivationStore(const ActivationStore&) = delete;
  ActivationStore& operator=(const ActivationStore&) = delete;

  /// Stores tensors that operators of this thread save, as long as it lives. Tensors that it does not store
  /// go to the outer scope. Operators throw DataError then: no room, or an earlier write has failed; and so
  /// does a backward that cannot read. A forward or backward that has failed can be run again.
  class Scope;

  /// That live there now, and the most that did since it was made.
  std::int64_t kept_bytes() const;
  std::int64_t max_kept_bytes() const;

  class Keeping;

 private:
  const std::shared_ptr<Keeping> keeping_;
};

class ActivationStore::Scope {
 public:
  /// `own`: tensors whose memory stays where it is.
  explicit Scope(const ActivationStore& store, const Tensors& own = {});
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  class Keeper;
  const std::unique_ptr<Keeper> keeper_;
};

/// The same layer, with its saved tensors in the store.
Layer kept_in(const std::shared_ptr<ActivationStore>& store, Layer layer);

}  // namespace trireme::model
