#pragma once
// Batches where a rank computes: between a stream of data, which lie on the host, and steps on a device. A
// batch is copied on a stream of the device's own for that, from pinned memory, the next one while the device
// still computes with the one before; the stream that computes waits for what it needs, the host for nothing.
// On the CPU batches pass through.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/data/training_data.h"

namespace trireme::train {

class DevicePrefetcher {
 public:
  /// Sides of a batch that are not needed stay on the host.
  DevicePrefetcher(std::unique_ptr<data::BatchStream> stream, c10::Device device, const data::Needed& needed);

  /// The next step's batch, on the host. Throws as BatchStream::next.
  const data::StepBatch& next();
  const data::StepBatch& batch() const { return now_.host; }
  /// Micro-batch `m` of it, what is needed of it on the device, once. What is given to the current stream
  /// from now on waits until it is there.
  data::Example microbatch(std::size_t m);

  /// Begins to copy the batch after this one, if it has been read; for who has just given the device its
  /// work, and is about to wait for that. On the CPU, nothing. An error of the data comes with next().
  void copy_ahead();

  /// As BatchStream's. What was copied ahead of a seek is dropped.
  void seek(std::uint64_t step);
  void assign_shares(std::uint64_t from, const data::Shares& shares) { stream_->assign_shares(from, shares); }
  void change_ramp(std::uint64_t from, const data::BatchRamp& ramp) { stream_->change_ramp(from, ramp); }
  data::LoadingReport report() const { return stream_->report(); }

 private:
  struct Copied {
    data::Example samples;
    c10::Event arrived;
  };
  struct Batch {
    data::StepBatch host;
    std::vector<Copied> there;  ///< of each micro-batch; empty on the CPU
  };
  Batch take();

  const std::unique_ptr<data::BatchStream> stream_;
  const c10::Device device_;
  const data::Needed needed_;
  const std::optional<c10::Stream> copies_;  ///< none on the CPU
  Batch now_;
  std::optional<Batch> ahead_;
};

}  // namespace trireme::train
