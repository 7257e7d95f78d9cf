#include "trireme/optim/internal/kept_bytes.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/base/memory_ledger.h"
#include "trireme/base/scratch_file.h"

namespace trireme::optim {
namespace {

class BytesInFile final : public KeptBytes {
 public:
  explicit BytesInFile(const KeptBytesOptions& options)
      : file_({.folder = options.folder, .owner = options.owner, .purpose = options.purpose}) {}

  std::uint64_t bytes() const override { return file_.bytes(); }
  void reserve(std::uint64_t bytes) override { file_.reserve(bytes); }
  void read(std::uint64_t offset, std::span<std::byte> into) const override { file_.read(offset, into); }
  void write(std::uint64_t offset, std::span<const std::byte> from) override { file_.write(offset, from); }
  bool in_memory() const override { return false; }
  std::vector<at::Tensor> memory(std::uint64_t, std::uint64_t) const override { return {}; }

 private:
  ScratchFile file_;
};

/// Blocks of host memory, one for each increase by reserve(). Pinned for a device, which then copies by DMA.
class BytesOfHost final : public KeptBytes {
 public:
  explicit BytesOfHost(const KeptBytesOptions& options)
      : owner_(options.owner), purpose_(options.purpose), pinned_(!options.device.is_cpu()) {}

  std::uint64_t bytes() const override { return bytes_; }

  void reserve(std::uint64_t bytes) override {
    if (bytes <= bytes_) return;
    const auto more = static_cast<std::int64_t>(bytes - bytes_);
    try {
      blocks_.push_back({bytes_, at::zeros({more}, at::TensorOptions(at::kByte).pinned_memory(pinned_))});
    } catch (const c10::Error& error) {
      throw DataError(text(owner_, ": the host has no ", pinned_ ? "memory that can be pinned" : "memory",
                           " for ", human_bytes(static_cast<std::uint64_t>(more)), " of ", purpose_, ": ",
                           error.what_without_backtrace(),
                           "; keep them in files (\"files\"), or shard them over more ranks"));
    }
    MemoryLedger::of_process().name(blocks_.back().memory.const_data_ptr(), MemoryKind::kOptimizer);
    bytes_ = bytes;
  }

  void read(std::uint64_t offset, std::span<std::byte> into) const override {
    for (const at::Tensor& run : memory(offset, into.size())) {
      std::memcpy(into.data(), run.const_data_ptr(), run.nbytes());
      into = into.subspan(run.nbytes());
    }
  }
  void write(std::uint64_t offset, std::span<const std::byte> from) override {
    for (const at::Tensor& run : memory(offset, from.size())) {
      std::memcpy(run.mutable_data_ptr(), from.data(), run.nbytes());
      from = from.subspan(run.nbytes());
    }
  }

  bool in_memory() const override { return true; }
  std::vector<at::Tensor> memory(std::uint64_t offset, std::uint64_t bytes) const override {
    std::vector<at::Tensor> runs;
    for (const auto& [begin, block] : blocks_) {
      const std::uint64_t first = std::max(offset, begin);
      const std::uint64_t last = std::min(offset + bytes, begin + block.nbytes());
      if (first < last)
        runs.push_back(block.narrow(0, static_cast<std::int64_t>(first - begin),
                                    static_cast<std::int64_t>(last - first)));
    }
    return runs;
  }

 private:
  struct Block {
    std::uint64_t begin;
    at::Tensor memory;
  };

  const std::string owner_, purpose_;
  const bool pinned_;
  std::vector<Block> blocks_;
  std::uint64_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<KeptBytes> make_kept_bytes(const KeptBytesOptions& options) {
  if (options.place == OffloadPlace::kHost) return std::make_unique<BytesOfHost>(options);
  return std::make_unique<BytesInFile>(options);
}

}  // namespace trireme::optim
