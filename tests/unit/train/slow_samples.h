#pragma once
// A data set that makes a rank slow.

#include <chrono>
#include <memory>
#include <span>
#include <thread>
#include <utility>

#include "trireme/data/dataset.h"

namespace trireme::train {

/// Each sample takes some time. A part of a batch takes longer than a step on a busy machine, otherwise
/// prefetching would hide it.
class SlowSamples : public data::Dataset {
 public:
  explicit SlowSamples(std::shared_ptr<const Dataset> samples) : samples_(std::move(samples)) {}
  std::int64_t size() const override { return samples_->size(); }
  data::Example get(std::int64_t index) const override { return samples_->get(index); }
  data::Example get_batch(std::span<const std::int64_t> indices) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(5) * indices.size());
    return samples_->get_batch(indices);
  }

 private:
  std::shared_ptr<const Dataset> samples_;
};

}  // namespace trireme::train
