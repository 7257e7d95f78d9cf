#include "trireme/parallel/data/slicing_hook.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/comm/clone_group.h"
#include "trireme/parallel/data/internal/compressing_hook.h"
#include "trireme/parallel/data/internal/slice_order.h"
#include "trireme/parallel/data/internal/slice_tuner.h"

namespace trireme::parallel {
namespace {

/// Slices in flight: one is transferred while another is summed, copied, or waits for a rank.
constexpr std::size_t kCredits = 2;

void copy_bytes(const at::Tensor& to, const at::Tensor& from) {
  std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
}

class SlicingHook final : public CommHook {
 public:
  explicit SlicingHook(const SlicingOptions& options) : options_(options) {
    require(
        options.slice_bytes >= 0,
        "a slice of gradients has some bytes, or 0: as many as are found to be best; found slice_bytes = ",
        options.slice_bytes);
  }
  ~SlicingHook() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  void prepare(const comm::Group& group, const optim::NamedTensors& parameters) override;
  std::function<void()> start(comm::Group& group, GradientBucket& bucket, ReduceScale scale) override;
  std::string describe() const override {
    return is_tuned() ? "slices of tuned sizes" : text("slices of ", options_.slice_bytes, " bytes");
  }
  std::string found() const override {
    const std::lock_guard lock(mutex_);
    return is_tuned() && tuner_.is_over() ? text("slices of ", tuner_.slice_bytes() >> 10, " KiB are fastest")
                                          : "";
  }
  std::int64_t sent_bytes() const override {
    const std::lock_guard lock(mutex_);
    return sent_bytes_;
  }

 private:
  /// The reduction of a bucket.
  struct Job {
    at::Tensor flat;
    comm::ReduceOp op;
    std::int64_t left;  ///< elements that are not reduced yet
    int told = -1;      ///< the trial of slice sizes whose time it reports, ...
    double told_s = 0;  ///< ... and this rank's time
  };
  /// Per concurrent slice: a group, and memory for the reduced values, by dtype.
  struct Lane {
    comm::Group group;
    std::map<at::ScalarType, at::Tensor> memory = {};
  };
  /// A slice in flight. Its message also tells how many further buckets are ready.
  struct UnderWay {
    SliceOrder::Slice slice;
    std::shared_ptr<Job> job;
    std::uint64_t first_unknown;
    at::Tensor sent;
    comm::Pending reduction;
    bool is_over = false;
    int num_everywhere = 0;
  };
  /// Values after a slice in a message: how many further buckets are ready, and the tuner's report.
  static constexpr std::int64_t kSaid = SliceOrder::kWindow + 1;

  void run();
  bool wait_for(std::uint64_t bucket);
  void issue(std::uint64_t bucket);
  void finish(UnderWay& each);
  bool is_tuned() const { return options_.slice_bytes == 0; }
  void begin_step_with(const GradientBucket& bucket);
  int num_everywhere(const UnderWay& each) const;
  at::Tensor memory_for(Lane& lane, const at::Tensor& flat, std::int64_t numel);
  static std::int64_t slice_numel(const at::Tensor& flat, std::int64_t bytes) {
    return std::max<std::int64_t>(1, bytes / static_cast<std::int64_t>(flat.element_size()));
  }

  const SlicingOptions options_;
  std::map<std::string, std::int64_t> needs_;  ///< positions of parameters in the model
  std::string group_name_;

  // Used only by the thread.
  std::vector<Lane> lanes_;
  std::size_t next_lane_ = 0;
  std::deque<UnderWay> under_way_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  SliceOrder order_;
  SliceTuner tuner_;
  std::size_t num_in_step_ = 0;                         ///< parameters whose gradients have come in this step
  std::map<std::uint64_t, std::shared_ptr<Job>> jobs_;  ///< jobs with slices that are not issued yet
  std::uint64_t num_started_ = 0;
  std::int64_t sent_bytes_ = 0;
  std::exception_ptr failure_;
  bool stop_ = false;
  std::thread thread_;
};

void SlicingHook::prepare(const comm::Group& group, const optim::NamedTensors& parameters) {
  require(group_name_.empty(), "the slices of group '", group_name_,
          "' are of one set of parameters, and these", " are others of group '", group.name(),
          "': make another hook for them with make_slicing_hook()");
  for (const auto& [name, parameter] : parameters) {
    require(parameter.device().is_cpu(), "parameter '", name, "' is on ", parameter.device().str(),
            ", and gradients go in slices from the host's memory alone");
    needs_.emplace(name, static_cast<std::int64_t>(needs_.size()));
  }
  for (std::size_t i = 0; i < kCredits; ++i) lanes_.push_back({.group = comm::clone_group(group, "slices")});
  group_name_ = group.name();
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "trireme-slices");
}

std::function<void()> SlicingHook::start(comm::Group& group, GradientBucket& bucket, ReduceScale scale) {
  std::int64_t need = needs_.at(bucket.gradients.front().first);
  for (const auto& [name, gradient] : bucket.gradients) need = std::min(need, needs_.at(name));
  const auto job = std::make_shared<Job>(
      Job{.flat = bucket.flat,
          .op = scale == ReduceScale::kMean ? comm::ReduceOp::kAverage : comm::ReduceOp::kSum,
          .left = bucket.flat.numel()});
  {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    sent_bytes_ += all_reduce_bytes(group, bucket.flat);
    begin_step_with(bucket);
    if (is_tuned() && tuner_.told() >= 0) {
      job->told = tuner_.told();
      job->told_s = tuner_.told_s();
    }
    jobs_[num_started_++] = job;
    const std::int64_t bytes = is_tuned() ? tuner_.slice_bytes() : options_.slice_bytes;
    order_.add(bucket.flat.numel(), slice_numel(bucket.flat, bytes), need);
  }
  changed_.notify_all();
  return [this, job] {
    std::unique_lock lock(mutex_);
    // No deadline needed: each operation of the thread has one, and ends with a result or a failure.
    changed_.wait(lock, [&] { return job->left == 0 || failure_; });
    if (job->left > 0) std::rethrow_exception(failure_);
  };
}

/// A step ends when each parameter has had its gradient.
void SlicingHook::begin_step_with(const GradientBucket& bucket) {
  if (num_in_step_ == 0 && is_tuned()) tuner_.begin_step(now_s());
  num_in_step_ += bucket.gradients.size();
  if (num_in_step_ >= needs_.size()) num_in_step_ = 0;
}

/// The number of ready buckets that a slice reports influences the order only two slices later, so that every
/// rank decides from the same data.
void SlicingHook::run() {
  const at::NoGradGuard no_grad;
  try {
    while (true) {
      if (under_way_.size() == kCredits) {
        finish(under_way_.front());
        const std::lock_guard lock(mutex_);
        order_.learn(under_way_.front().first_unknown, under_way_.front().num_everywhere);
        under_way_.pop_front();
      }
      std::unique_lock lock(mutex_);
      const std::uint64_t bucket = order_.choose();
      lock.unlock();
      if (!wait_for(bucket)) return;
      issue(bucket);
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
  changed_.notify_all();
}

/// Waits until the bucket is ready on this rank, and finishes slices in flight meanwhile. False: the hook
/// stops.
bool SlicingHook::wait_for(std::uint64_t bucket) {
  std::unique_lock lock(mutex_);
  for (UnderWay& each : under_way_) {
    if (order_.is_here(bucket)) return true;
    lock.unlock();
    finish(each);
    lock.lock();
  }
  // No deadline needed: it waits for this rank's own backward, not for a rank. The destructor ends it.
  changed_.wait(lock, [&] { return stop_ || order_.is_here(bucket); });
  return order_.is_here(bucket);
}

at::Tensor SlicingHook::memory_for(Lane& lane, const at::Tensor& flat, std::int64_t numel) {
  at::Tensor& memory = lane.memory[flat.scalar_type()];
  if (!memory.defined())
    memory = lane.group.allocate(slice_numel(flat, max_slice_bytes(options_)) + kSaid,
                                 flat.options().requires_grad(false));
  return memory.narrow(0, 0, numel);
}

void SlicingHook::issue(std::uint64_t bucket) {
  UnderWay next{};
  int num_here = 0;
  {
    const std::lock_guard lock(mutex_);
    next.job = jobs_.at(bucket);
    next.slice = order_.take(bucket);
    next.first_unknown = order_.first_unknown();
    num_here = order_.num_here();
    if (next.slice.begin + next.slice.numel == next.job->flat.numel()) jobs_.erase(bucket);
  }
  Lane& lane = lanes_[std::exchange(next_lane_, (next_lane_ + 1) % lanes_.size())];
  const auto [begin, numel] = std::pair(next.slice.begin, next.slice.numel);
  next.sent = memory_for(lane, next.job->flat, numel + kSaid);
  copy_bytes(next.sent.narrow(0, 0, numel), next.job->flat.narrow(0, begin, numel));
  next.sent.narrow(0, numel, num_here).fill_(1);
  next.sent.narrow(0, numel + num_here, SliceOrder::kWindow - num_here).zero_();
  next.sent.narrow(0, numel + SliceOrder::kWindow, 1).fill_(next.job->told_s);
  next.reduction = lane.group.all_reduce_async(next.sent, next.job->op);
  under_way_.push_back(std::move(next));
}

int SlicingHook::num_everywhere(const UnderWay& each) const {
  const at::Tensor said = each.sent.narrow(0, each.slice.numel, SliceOrder::kWindow).to(at::kFloat);
  const float ranks = static_cast<float>(lanes_.front().group.size());
  const float all = each.job->op == comm::ReduceOp::kAverage ? 1 : ranks;
  const float* begin = said.const_data_ptr<float>();
  const float least = all * (1 - 0.5F / ranks);
  return static_cast<int>(
      std::find_if(begin, begin + SliceOrder::kWindow, [&](float sum) { return sum < least; }) - begin);
}

void SlicingHook::finish(UnderWay& each) {
  if (std::exchange(each.is_over, true)) return;
  each.reduction.wait();
  copy_bytes(each.job->flat.narrow(0, each.slice.begin, each.slice.numel),
             each.sent.narrow(0, 0, each.slice.numel));
  each.num_everywhere = num_everywhere(each);
  {
    const std::lock_guard lock(mutex_);
    if (each.job->told >= 0) {
      const at::Tensor told = each.sent.narrow(0, each.slice.numel + SliceOrder::kWindow, 1);
      tuner_.learn(each.job->told, told.to(at::kDouble).item<double>());
    }
    each.job->left -= each.slice.numel;
    if (each.job->left > 0) return;
  }
  changed_.notify_all();
}

}  // namespace

std::int64_t max_slice_bytes(const SlicingOptions& options) {
  return options.slice_bytes > 0 ? options.slice_bytes : SliceTuner::kSizes.back();
}

std::shared_ptr<CommHook> make_slicing_hook(const SlicingOptions& options) {
  return std::make_shared<SlicingHook>(options);
}

}  // namespace trireme::parallel
