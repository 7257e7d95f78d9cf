#pragma once
// Memory of this process in bytes, by kind. The allocator of a block reports it to the ledger, and its user
// sets its kind later. The ledger keeps the kinds at the time of the largest total. A process has one, as it
// has one heap: ranks that are threads of a process share it. Thread-safe; a block costs a lock and a
// look-up, so small ones are left out.

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace trireme {

/// Purpose of a block of memory.
enum class MemoryKind {
  kActivations,  ///< unnamed memory: activations, batches, temporary results
  kWeights,      ///< parameters and buffers
  kGradients,    ///< and the buckets in which they are reduced
  kOptimizer,    ///< moments, moving averages of the weights
  kCommunication,
};
/// How many kinds there are: the length of arrays that a MemoryKind indexes.
inline constexpr std::size_t kNumMemoryKinds = 5;
/// "activations", "weights", "gradients", "optimizer", "communication"
const char* name_of(MemoryKind kind);

/// Bytes of each kind.
struct MemoryUse {
  std::array<std::int64_t, kNumMemoryKinds> bytes = {};

  std::int64_t& operator[](MemoryKind kind) { return bytes[static_cast<std::size_t>(kind)]; }
  std::int64_t operator[](MemoryKind kind) const { return bytes[static_cast<std::size_t>(kind)]; }
  std::int64_t total() const;
};

class MemoryLedger {
 public:
  /// Of the smallest block that is reported.
  static constexpr std::size_t kMinBytes = 4096;

  /// The one ledger of this process. It is never destroyed, so that blocks may be freed while the process
  /// ends.
  static MemoryLedger& of_process();

  /// A block that begins at `address` is allocated, and is freed. `bytes` are its cost for this process: its
  /// share, where processes have a block in common.
  void add(const void* address, std::size_t bytes, MemoryKind kind = MemoryKind::kActivations);
  void remove(const void* address);
  /// The block that begins there is of that kind; nothing where none is known.
  void name(const void* address, MemoryKind kind);

  MemoryUse now() const;
  /// When the total was largest since the process began or the peak was reset.
  MemoryUse at_peak() const;
  void reset_peak();

 private:
  struct Block {
    std::size_t bytes;
    MemoryKind kind;
  };
  mutable std::mutex mutex_;
  std::unordered_map<const void*, Block> blocks_;
  MemoryUse now_, at_peak_;
  std::int64_t total_ = 0, peak_ = 0;
};

}  // namespace trireme
