#pragma once
// Compression of gradients as a setting of train.adapt: the configured codec, or none where its work costs
// more time than its fewer bytes save. Both exchanges are measured once, before the first step. One thread.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "trireme/parallel/data/switched_hook.h"
#include "trireme/train/parts/adaptation.h"
#include "trireme/train/step/internal/step_part.h"

namespace trireme::train {

/// Seconds of an exchange of all gradients with nothing next to it; of the slowest rank.
struct ExchangeSeconds {
  double compressed_s = 0, plain_s = 0;
};

/// Exchanges copies of some parameters, of 8 MB at most, with and without compression, and extrapolates by
/// size. Nothing of the run changes. The same on all ranks. Collective over the world.
ExchangeSeconds measure_exchanges(const TrainerObjects& objects, const comm::Group& copies);

class CompressionKnob final : public Knob {
 public:
  CompressionKnob(std::shared_ptr<parallel::SwitchedHook> hook, std::string codec, ExchangeSeconds exchange)
      : hook_(std::move(hook)), codec_(std::move(codec)), exchange_(exchange) {}

  std::string name() const override { return "compression of gradients"; }
  std::string value() const override { return is_on_ ? codec_ : "none"; }
  std::optional<Proposal> propose(std::span<const StepReport> window, double step_s) override;
  void apply(std::int64_t from) override;
  void revert(std::int64_t from) override { change(!is_on_, from); }
  void start_over(std::int64_t step) override;

  /// Before the first reduction of the step after `steps_done`.
  void begin_step(std::int64_t steps_done);
  /// The hook's state was restored after a skipped step.
  void skipped() { hook_->set_compressing(hook_->is_compressing()); }

 private:
  void change(bool is_on, std::int64_t from);

  const std::shared_ptr<parallel::SwitchedHook> hook_;
  const std::string codec_;
  const ExchangeSeconds exchange_;
  bool is_on_ = true;  ///< as decided; the hook's from step from_ on
  std::optional<std::int64_t> from_;
  /// Steps without compression, of batches of that size.
  struct Steps {
    double step_s;
    std::int64_t full_batch;
  };
  std::optional<Steps> shortest_off_;  ///< since compression is off, or since its last trial
  std::optional<Steps> longest_off_;   ///< those that were the reason of the last proposal
};

}  // namespace trireme::train
