#pragma once
// Batches on the device of a rank. It is between a stream of data in host memory and steps on a device. A
// batch is copied on a separate stream of the device, from pinned memory, while the device computes with the
// batch before. The computing stream waits for its inputs; the host does not wait. On the CPU batches pass
// through.

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
  /// Micro-batch `m`: its needed fields on the device, once. Work that is submitted to the current stream
  /// afterwards waits for the copy.
  data::Example microbatch(std::size_t m);

  /// Begins to copy the next batch, if it has been read. Call it after work was submitted to the device and
  /// before waiting for that work. On the CPU it does nothing. next() throws errors of the data.
  void copy_ahead();

  /// As BatchStream's. Batches copied ahead of a seek are dropped.
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
