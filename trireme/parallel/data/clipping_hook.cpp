// Local gradient clipping (Lin et al., ICLR 2018, section 3.2). Each rank clips its gradients before any of
// them is kept or sent. Its limit is 1/sqrt(N) of the norm that the gradients of N ranks may have together.
// The norm covers all gradients of a pass, so no bucket is sent before the last gradient is ready.

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/parallel/data/gradient_squares.h"
#include "trireme/parallel/data/internal/compressing_hook.h"

namespace trireme::parallel {
namespace {

class ClippingHook final : public CommHook {
 public:
  ClippingHook(std::shared_ptr<CommHook> next, double norm) : next_(std::move(next)), norm_(norm) {}

  void prepare(const comm::Group& group, const optim::NamedTensors& parameters) override {
    next_->prepare(group, parameters);
    for (const auto& [name, parameter] : parameters) places_.emplace(name, places_.size());
  }
  void attach_optimizer(const std::map<std::string, at::Tensor>& state) override {
    next_->attach_optimizer(state);
  }
  void set_gradient_scale(double scale) override {
    next_->set_gradient_scale(scale);
    gradient_scale_ = scale;
  }
  std::function<void()> start(comm::Group& group, GradientBucket& bucket, ReduceScale scale) override {
    held_.push_back(std::make_shared<Held>(Held{group, bucket, scale, nullptr}));
    return [this, held = held_.back()] {
      release();
      if (held->rest) held->rest();
    };
  }
  HookState state() override { return next_->state(); }
  comm::Group memory_of(const comm::Group& group) const override { return next_->memory_of(group); }
  void restored() override { next_->restored(); }
  std::string describe() const override { return text(next_->describe(), ", local clip norm ", norm_); }
  std::int64_t sent_bytes() const override { return next_->sent_bytes(); }

 private:
  /// A bucket that waits for the other buckets of its pass.
  struct Held {
    comm::Group group;
    GradientBucket bucket;
    ReduceScale scale;
    std::function<void()> rest;
  };

  void release() {
    const std::vector<std::shared_ptr<Held>> pass = std::exchange(held_, {});
    if (pass.empty()) return;
    clip(pass);
    for (const auto& each : pass) each->rest = next_->start(each->group, each->bucket, each->scale);
  }

  /// Summed in the order of the parameters, for any assignment to buckets.
  double norm_of(const std::vector<std::shared_ptr<Held>>& pass) const {
    std::vector<double> squares(places_.size());
    for (const auto& each : pass) {
      for (const auto& [name, gradient] : each->bucket.gradients)
        squares[places_.at(name)] = sum_of_squares(gradient);
    }
    double sum = 0;
    for (const double square : squares) sum += square;
    return std::sqrt(sum);
  }

  void clip(const std::vector<std::shared_ptr<Held>>& pass) const {
    const auto ranks = static_cast<double>(pass.front()->group.size());
    // For a mean, a rank's contribution is larger than for a sum by the number of ranks.
    const double most =
        norm_ * gradient_scale_ * (pass.front()->scale == ReduceScale::kMean ? ranks : 1) / std::sqrt(ranks);
    const double norm = norm_of(pass);
    // A norm that is not finite is not clipped, so that it is detected later.
    if (!std::isfinite(norm) || norm <= most) return;
    for (const auto& each : pass) {
      const at::Tensor& flat = each->bucket.flat;
      for (const auto& [name, gradient] : each->bucket.gradients)
        flat.narrow(0, gradient.storage_offset() - flat.storage_offset(), gradient.numel()).mul_(most / norm);
    }
  }

  const std::shared_ptr<CommHook> next_;
  const double norm_;
  double gradient_scale_ = 1;
  std::map<std::string, std::size_t> places_;  ///< indices of parameters
  std::vector<std::shared_ptr<Held>> held_;
};

}  // namespace

std::shared_ptr<CommHook> make_clipping_hook(std::shared_ptr<CommHook> next, double norm) {
  require(norm > 0 && std::isfinite(norm), "the norm that gradients are held to must be above 0; found ",
          norm);
  return std::make_shared<ClippingHook>(std::move(next), norm);
}

}  // namespace trireme::parallel
