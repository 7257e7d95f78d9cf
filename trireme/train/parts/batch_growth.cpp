#include "trireme/train/parts/batch_growth.h"

#include <cmath>

#include "trireme/base/text.h"

namespace trireme::train {

BatchGrowth::BatchGrowth(const TrainOptions& train)
    : every_steps_(train.noise_scale_every_steps), sizes_(train.batch_ramp_sizes) {
  sizes_.push_back(train.global_batch);
}

std::optional<std::string> BatchGrowth::observe(const StepReport& report, std::int64_t from) {
  if (ends_.size() + 1 == sizes_.size() || !report.noise_scale || report.step % every_steps_ != 0)
    return std::nullopt;
  const std::int64_t began = ends_.empty() ? 0 : ends_.back();
  const std::int64_t measured = report.step / every_steps_ - began / every_steps_;
  const std::int64_t next = sizes_[ends_.size() + 1];
  if (report.step <= began || measured < kMeasurements || *report.noise_scale < static_cast<double>(next))
    return std::nullopt;
  ends_.push_back(from);
  const std::string scale = std::isfinite(*report.noise_scale)
                                ? text(std::llround(*report.noise_scale), " samples")
                                : std::string("beyond measure");
  return text("the gradient noise scale is ", scale, ", and has reached the next size");
}

}  // namespace trireme::train
