#pragma once
// Offloaded bytes of one purpose, in a file or in host memory. All are 0 at first. Thread-safe for ranges
// that do not overlap.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/optim/offload_options.h"

namespace trireme::optim {

class KeptBytes {
 public:
  virtual ~KeptBytes() = default;
  virtual std::uint64_t bytes() const = 0;
  /// At least so many. Throws DataError: no room.
  virtual void reserve(std::uint64_t bytes) = 0;
  /// Throw DataError.
  virtual void read(std::uint64_t offset, std::span<std::byte> into) const = 0;
  virtual void write(std::uint64_t offset, std::span<const std::byte> from) = 0;
  virtual bool in_memory() const = 0;
  /// Their memory, one range after the other; none in a file.
  virtual std::vector<at::Tensor> memory(std::uint64_t offset, std::uint64_t bytes) const = 0;
};

/// Where bytes are kept, and how messages call them.
struct KeptBytesOptions {
  OffloadPlace place = OffloadPlace::kFiles;
  std::filesystem::path folder;    ///< of files
  std::string owner;               ///< "rank 2"
  std::string purpose;             ///< "the optimizer's state"
  c10::Device device = c10::kCPU;  ///< that works on them
};
std::unique_ptr<KeptBytes> make_kept_bytes(const KeptBytesOptions& options);

}  // namespace trireme::optim
