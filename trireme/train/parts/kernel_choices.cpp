// train.convolution, and all-reduces between hosts. The fastest kernels on this machine are measured when a
// run begins. A resumed run continues with the choice in its checkpoint, so that its numbers stay the same.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>

#include "trireme/checkpoint/checkpoint_part.h"
#include "trireme/model/convolution_scope.h"
#include "trireme/train/parts/convolutions.h"
#include "trireme/train/step/internal/all_parts.h"

namespace trireme::train {
namespace {

at::Tensor tensor_of(const std::string& text) {
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.data_ptr<std::uint8_t>());
  return bytes;
}

std::string text_of(const at::Tensor& bytes) {
  const auto* text = bytes.const_data_ptr<std::uint8_t>();
  return {text, text + bytes.numel()};
}

const std::string kConvolutions = text(checkpoint::kOptimizerPrefix, "convolutions/kernels");
const std::string kAllReduces = text(checkpoint::kOptimizerPrefix, "all_reduces/between_hosts");

class KernelChoices final : public StepPart {
 public:
  explicit KernelChoices(const PartSetup& setup)
      : context_(setup.context),
        measured_(convolutions_for(setup.plan.convolutions(), setup.plan.precision(), setup.context,
                                   setup.whole, setup.data.train->trial_batch(1).input,
                                   setup.plan.samples_of_microbatch())) {
    chosen_[kConvolutions] = tensor_of(to_text(measured_));
  }

  void attach(const TrainerObjects& /*objects*/) override {
    chosen_[kAllReduces] = tensor_of(context_.all_reduce_choices());
  }
  std::shared_ptr<void> compute_scope() override {
    return std::make_shared<model::ConvolutionScope>(choice());
  }
  /// A choice is a text. In a checkpoint it may have another length, or be missing.
  void add_state(StateParts& state) override {
    for (auto& [name, chosen] : chosen_) {
      StatePart part{.prefix = name};
      if (chosen.numel() > 0) part.shards.push_back(checkpoint::whole_shard(name, chosen));
      part.restore = [this, name = name](const StoredSizes& stored) { return restore(name, stored); };
      state.push_back(std::move(part));
    }
  }
  void restored(std::int64_t /*steps_done*/) override {
    take_convolutions();
    take_all_reduces();
  }

 private:
  static constexpr const char* kWhy = ", as the run began, so that its numbers stay";

  Restoration restore(const std::string& name, const StoredSizes& stored) {
    const auto found = stored.find(name);
    at::Tensor& chosen = chosen_.at(name);
    chosen = at::empty({found == stored.end() ? 0 : found->second.at(0)}, at::kByte);
    if (chosen.numel() == 0) return {};
    return {.shards = {checkpoint::whole_shard(name, chosen)}};
  }
  /// Parsed at every use, as the state may be restored in place.
  model::ConvolutionChoice choice() {
    const std::string chosen = text_of(chosen_.at(kConvolutions));
    if (chosen.empty()) return measured_;
    if (read_.first != chosen) read_ = {chosen, model::convolution_choice_from(chosen)};
    return read_.second;
  }
  void take_convolutions() {
    const model::ConvolutionChoice restored = choice();
    chosen_.at(kConvolutions) = tensor_of(to_text(restored));
    if (restored != measured_ && context_.is_main())
      context_.log().info("convolutions: ", describe(restored), kWhy, "; this machine would take ",
                          describe(measured_));
  }
  void take_all_reduces() {
    const std::string before = context_.all_reduce_choices();
    context_.take_all_reduce_choices(text_of(chosen_.at(kAllReduces)));
    const std::string taken = context_.all_reduce_choices();
    chosen_.at(kAllReduces) = tensor_of(taken);
    if (taken != before && context_.is_main()) context_.log().info("all-reduces between hosts", kWhy);
  }

  comm::Context& context_;
  const model::ConvolutionChoice measured_;                ///< measured by all ranks when this run began
  std::pair<std::string, model::ConvolutionChoice> read_;  ///< a choice, and the text that it was read from
  std::map<std::string, at::Tensor> chosen_;  ///< in use, as texts, by name in a checkpoint; empty: none
};

}  // namespace

std::unique_ptr<StepPart> make_kernel_choices(const PartSetup& setup) {
  return std::make_unique<KernelChoices>(setup);
}

}  // namespace trireme::train
