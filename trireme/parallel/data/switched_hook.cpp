#include "trireme/parallel/data/switched_hook.h"

#include "trireme/base/error.h"
#include "trireme/parallel/data/internal/residual_keeper.h"

namespace trireme::parallel {

bool can_switch(const CompressionOptions& options) {
  return options.name != "none" && !has_own_momentum(options.name) && !compresses_momentum(options.name);
}

namespace {

std::shared_ptr<CommHook> make_switched(const CompressionOptions& options) {
  require(can_switch(options), "compression \"", options.name,
          "\" cannot be switched during a run: \"dgc\" and \"one-bit\" have the momentum, and \"none\" has "
          "nothing to switch");
  return make_comm_hook(options);
}

}  // namespace

SwitchedHook::SwitchedHook(const CompressionOptions& options)
    : compression_(make_switched(options)), plain_(make_comm_hook("none")) {}

void SwitchedHook::prepare(const comm::Group& group, const optim::NamedTensors& parameters) {
  compression_->prepare(group, parameters);
  for (const auto& each : parameters) parameters_.insert(each.first);
  set_compressing(compresses_);
}

void SwitchedHook::set_compressing(bool compresses) {
  compresses_ = compresses;
  const bool keeps = dynamic_cast<const ResidualKeeper*>(compression_.get()) != nullptr;
  unreleased_ = compresses || !keeps ? std::set<std::string>{} : parameters_;
}

std::function<void()> SwitchedHook::start(comm::Group& group, GradientBucket& bucket, ReduceScale scale) {
  if (compresses_) return compression_->start(group, bucket, scale);
  if (!unreleased_.empty()) {
    GradientBucket late{.flat = bucket.flat, .flag = {}, .gradients = {}};
    for (const auto& each : bucket.gradients) {
      if (unreleased_.erase(each.first) > 0) late.gradients.push_back(each);
    }
    auto& keeper = dynamic_cast<ResidualKeeper&>(*compression_);
    if (!late.gradients.empty()) keeper.release(late, keeper.factor_in(group, scale));
  }
  return plain_->start(group, bucket, scale);
}

}  // namespace trireme::parallel
