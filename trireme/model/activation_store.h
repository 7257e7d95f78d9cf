#pragma once
// What autograd saves for a backward, kept elsewhere than in the memory that computes: in a file, or, where a
// device computes, in the host's memory, pinned. While a Scope lives, tensors that this thread's operators
// save go there, and what nobody else holds of them leaves memory. The backward gets them back, with the same
// bits. To a file they are written while the forward continues, and read back before the backward asks for
// them, from the last to the first; what a backward asks for before it is written is taken from memory.
//
// What goes is memory, whole: tensors that are views of one (queries, keys and values) travel once. Small
// tensors stay, and so do views of memory that is much larger than they are, and what a layer has of its own
// (parameters, buffers). As everywhere in autograd a saved tensor must not be changed in place before its
// backward: what is seen of that is rejected. docs/adr/0070.

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

  /// Where operators save tensors: those of this thread, as long as it lives. What it leaves goes to the
  /// scope around it. Operators throw DataError then: no room, or an earlier write has failed; and so does a
  /// backward that cannot read. A forward or backward that has failed can be run again.
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

/// The same layer, which keeps what it saves in the store.
Layer kept_in(const std::shared_ptr<ActivationStore>& store, Layer layer);

}  // namespace trireme::model
