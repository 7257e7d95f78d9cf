#include "trireme/data/batch_layout.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::data {

std::uint64_t BatchLayout::batches_in(std::int64_t samples, std::int64_t size) const {
  const bool has_smaller = samples % size != 0 && last_batch_ == LastBatch::kSmaller;
  return static_cast<std::uint64_t>(samples / size + (has_smaller ? 1 : 0));
}

BatchLayout::BatchLayout(std::int64_t num_samples, std::int64_t global_batch, const BatchRamp& ramp,
                         LastBatch last_batch)
    : num_samples_(num_samples), last_batch_(last_batch) {
  require(num_samples >= 1, "there are no samples to draw from");
  const auto begin_phase = [&](std::int64_t from, std::int64_t size) {
    require(size >= 1, "a global batch holds at least one sample, not ", size);
    require(last_batch == LastBatch::kSmaller || size <= num_samples, "a global batch of ", size,
            " samples is never full with ", num_samples,
            " samples, and batches that are not full are dropped (data.drop_last): make it smaller, or keep "
            "them");
    const auto step = static_cast<std::uint64_t>(from);
    BatchPlace begin = phases_.empty() ? BatchPlace() : in(phases_.back(), step);
    begin.full = size;
    begin.size = std::min(size, num_samples - begin.first);
    phases_.push_back({.from = step, .begin = begin});
  };
  std::int64_t from = 0;
  for (const BatchPhase& phase : ramp) {
    require(phase.until > from, "batches of ", phase.size, " samples end before step ", phase.until,
            ", where they begin at step ", from);
    begin_phase(from, phase.size);
    from = phase.until;
  }
  begin_phase(from, global_batch);
}

std::uint64_t BatchLayout::batches_of_first(const Phase& phase) const {
  return batches_in(num_samples_ - phase.begin.first, phase.begin.full);
}

std::uint64_t BatchLayout::batches_of_others(const Phase& phase) const {
  return batches_in(num_samples_, phase.begin.full);
}

BatchPlace BatchLayout::in(const Phase& phase, std::uint64_t step) const {
  BatchPlace place = phase.begin;
  std::uint64_t further = step - phase.from;
  if (const std::uint64_t here = batches_of_first(phase); further >= here) {
    further -= here;
    place.epoch += 1 + further / batches_of_others(phase);
    place.number = place.first = 0;
    further %= batches_of_others(phase);
  }
  place.number += static_cast<std::int64_t>(further);
  place.first += static_cast<std::int64_t>(further) * place.full;
  place.size = std::min(place.full, num_samples_ - place.first);
  return place;
}

BatchPlace BatchLayout::at(std::uint64_t step) const {
  const auto later = std::upper_bound(phases_.begin(), phases_.end(), step,
                                      [](std::uint64_t at, const Phase& phase) { return at < phase.from; });
  return in(later[-1], step);
}

std::int64_t BatchLayout::first_step_of(std::uint64_t epoch) const {
  // The last phase that begins before this epoch or at its start.
  const auto phase = std::find_if(phases_.rbegin(), phases_.rend(), [epoch](const Phase& each) {
    return each.begin.epoch < epoch || (each.begin.epoch == epoch && each.begin.first == 0);
  });
  if (phase->begin.epoch == epoch) return static_cast<std::int64_t>(phase->from);
  constexpr auto kMost = static_cast<std::uint64_t>(kMaxSteps);
  const std::uint64_t first = phase->from + batches_of_first(*phase), each = batches_of_others(*phase),
                      between = epoch - phase->begin.epoch - 1;
  if (first >= kMost || between > (kMost - first) / each) return kMaxSteps;
  return static_cast<std::int64_t>(first + between * each);
}

std::vector<std::int64_t> BatchLayout::phases_in(std::int64_t begin, std::int64_t end) const {
  std::vector<std::int64_t> steps;
  if (begin < end) steps.push_back(begin);
  for (const Phase& phase : phases_) {
    const auto from = static_cast<std::int64_t>(phase.from);
    if (begin < from && from < end) steps.push_back(from);
  }
  return steps;
}

}  // namespace trireme::data
