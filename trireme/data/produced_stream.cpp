#include "trireme/data/internal/produced_stream.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"

namespace trireme::data {
namespace {

/// Pinned memory, if it is requested and available.
at::Tensor memory_for(at::IntArrayRef shape, const at::TensorOptions& options, bool pinned) {
  if (!pinned) return at::empty(shape, options);
  try {
    return at::empty(shape, options.pinned_memory(true));
  } catch (const c10::Error&) {
    return at::empty(shape, options);
  }
}

Fields batch_like(const Fields& sample, std::int64_t rows, bool pinned) {
  return sample.map([&](const at::Tensor& tensor) {
    std::vector<std::int64_t> shape = {rows};
    shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
    return memory_for(shape, tensor.options(), pinned);
  });
}

Fields row_of(const Fields& batch, std::int64_t row) {
  return batch.map([&](const at::Tensor& tensor) { return tensor.select(0, row); });
}

/// Copies tensors of `made` that are not the row's own into the row.
void take_over(const Fields& row, const Fields& made, const ProducedOptions& data) {
  const auto check = [&](bool is_right) {
    require(is_right, "producer '", data.name, "' has delivered ", batch::to_text(made), ", and promised ",
            batch::to_text(row));
  };
  check(batch::same_names(row, made));
  for (std::size_t i = 0; i < row.size(); ++i) {
    const at::Tensor to = row.at(i), from = made.at(i);
    if (to.is_same(from)) continue;
    check(from.defined() && from.scalar_type() == to.scalar_type() && from.sizes() == to.sizes());
    to.copy_(from);
  }
}

}  // namespace

ProducedStream::ProducedStream(const ProducedOptions& data, const StreamOptions& options)
    : data_(data),
      options_(options),
      layout_(layout_of(options, data.samples_per_epoch)),
      partition_(options) {}

std::shared_ptr<ProducedStream::Unit> ProducedStream::make_unit(std::uint64_t number) const {
  const std::uint64_t step = number / units_per_step();
  const BatchPlace batch = layout_.at(step);
  const auto part = static_cast<std::int64_t>(number % units_per_step());
  const Slice slice = partition_.slice(partition_.at(step), batch, part);
  auto unit = std::make_shared<Unit>();
  unit->epoch = batch.epoch;
  unit->first_place = batch.first + slice.begin;
  unit->rows = slice.size();
  unit->samples = {batch_like(data_.like.input, unit->rows, options_.pinned),
                   batch_like(data_.like.target, unit->rows, options_.pinned)};
  for (std::int64_t row = unit->rows - 1; row >= 0; --row) unit->free.push_back(row);
  unit->is_checked = unit->rows == 0;
  return unit;
}

std::shared_ptr<ProducedStream::Unit> ProducedStream::unit_with_room() {
  const std::uint64_t first = consumed_ * units_per_step();
  const std::uint64_t end = first + static_cast<std::uint64_t>(options_.prefetch) * units_per_step();
  for (std::uint64_t number = first; number < end; ++number) {
    std::shared_ptr<Unit>& unit = units_[number];
    if (!unit) unit = make_unit(number);
    if (!unit->free.empty()) return unit;
  }
  return nullptr;
}

bool ProducedStream::fill(const std::function<void(Row&)>& make) {
  constexpr double kIdleWait_s = 60;
  Claim claim;
  {
    std::unique_lock lock(mutex_);
    while (!closed_ && !(claim.unit = unit_with_room()))
      room_.wait_until(lock, Deadline::after_s(kIdleWait_s).at());
    if (closed_) return false;
    claim.row = claim.unit->free.back();
    claim.unit->free.pop_back();
  }
  try {
    const Example into = {row_of(claim.unit->samples.input, claim.row),
                          row_of(claim.unit->samples.target, claim.row)};
    Row row = {.epoch = claim.unit->epoch, .place = claim.unit->first_place + claim.row, .sample = into};
    make(row);
    take_over(into.input, row.sample.input, data_);
    take_over(into.target, row.sample.target, data_);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    claim.unit->free.push_back(claim.row);
    room_.notify_all();
    throw;
  }
  finish(claim);
  return true;
}

void ProducedStream::finish(const Claim& claim) {
  Unit& unit = *claim.unit;
  {
    const std::lock_guard lock(mutex_);
    ++reported_.counts.samples;
    if (++unit.done < unit.rows) return;
  }
  std::exception_ptr error;
  try {
    check(unit);
  } catch (...) {
    error = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  unit.is_checked = true;
  unit.error = error;
  arrived_.notify_all();
}

void ProducedStream::check(Unit& unit) const {
  std::vector<std::int64_t> places(static_cast<std::size_t>(unit.rows));
  std::iota(places.begin(), places.end(), unit.first_place);
  check_finite(unit.samples, places);
  if (options_.check_targets) options_.check_targets(unit.samples, places);
}

bool ProducedStream::is_wanted() const {
  const std::lock_guard lock(mutex_);
  return !closed_;
}

void ProducedStream::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  room_.notify_all();
}

void ProducedStream::thread_ended(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  ++threads_ended_;
  if (error && !failure_) failure_ = std::move(error);
  arrived_.notify_all();
}

void ProducedStream::seek(std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  consumed_ = step;
  units_.clear();  // also drops rows that are being filled
  partition_.reset();
  room_.notify_all();
}

void ProducedStream::assign_shares(std::uint64_t from, const Shares& shares) {
  const std::lock_guard lock(mutex_);
  partition_.set(from, shares, consumed_);
  units_.erase(units_.lower_bound(from * units_per_step()), units_.end());
  room_.notify_all();
}

bool ProducedStream::step_is_there() {
  for (std::uint64_t i = 0; i < units_per_step(); ++i) {
    std::shared_ptr<Unit>& unit = units_[consumed_ * units_per_step() + i];
    if (!unit) unit = make_unit(consumed_ * units_per_step() + i);
    if (!unit->is_checked) return false;
  }
  return true;
}

std::string ProducedStream::what_is_missing() {
  std::int64_t rows = 0, done = 0;
  for (std::uint64_t i = 0; i < units_per_step(); ++i) {
    const Unit& unit = *units_.at(consumed_ * units_per_step() + i);
    rows += unit.rows;
    done += unit.done;
  }
  return text("producer '", data_.name, "' has delivered ", done, " of ", rows, " samples of step ",
              consumed_ + 1);
}

StepBatch ProducedStream::next() {
  std::unique_lock lock(mutex_);
  const auto over = [&] { return failure_ || (data_.threads > 0 && threads_ended_ == data_.threads); };
  const bool was_there = step_is_there();
  if (!was_there) {
    const double began_s = now_s();
    arrived_.wait_until(lock, Deadline::after_s(options_.timeout_s).at(),
                        [&] { return over() || step_is_there(); });
    reported_.waited_s += now_s() - began_s;
  }
  if (!step_is_there()) {
    if (failure_) std::rethrow_exception(failure_);
    if (over()) throw DataError(text(what_is_missing(), ", and all of its threads have returned"));
    throw DataError(text(what_is_missing(), " within ", options_.timeout_s,
                         " s; does it still run, and call fill() or put()?"));
  }
  const BatchPlace place = layout_.at(consumed_);
  StepBatch result = {
      .epoch = place.epoch, .batch = place.number, .global_size = place.size, .microbatches = {}};
  const auto first = units_.find(consumed_ * units_per_step());
  for (auto unit = first; unit != units_.end() && unit->first < (consumed_ + 1) * units_per_step(); ++unit) {
    if (unit->second->error) std::rethrow_exception(unit->second->error);
  }
  for (auto unit = first; result.microbatches.size() < units_per_step(); unit = units_.erase(unit))
    result.microbatches.push_back(std::move(unit->second->samples));
  ++consumed_;
  partition_.forget_before(consumed_);
  ++reported_.batches;
  if (was_there) reported_.fill += 1;
  room_.notify_all();
  return result;
}

bool ProducedStream::is_ready() {
  const std::lock_guard lock(mutex_);
  return step_is_there();
}

LoadingReport ProducedStream::report() const {
  const std::lock_guard lock(mutex_);
  LoadingReport report = reported_;
  if (report.batches > 0) report.fill /= static_cast<double>(report.batches);
  report.workers = data_.threads;
  report.prefetch = options_.prefetch;
  report.share = partition_.share(consumed_);
  return report;
}

}  // namespace trireme::data
