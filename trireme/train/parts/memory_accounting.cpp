// Memory of a trainer by kind: the part of the ledger that steps fill.
#include <map>

#include "trireme/parallel/counted_memory.h"
#include "trireme/parallel/device_memory.h"
#include "trireme/telemetry/rank_usage.h"
#include "trireme/train/step/internal/all_parts.h"

namespace trireme::train {
namespace {

/// 1024 elements of f32, as in CompressionOptions. Few vectors have so many.
constexpr std::int64_t kMinEncodedBytes = 4096;

class MemoryAccounting final : public StepPart {
 public:
  explicit MemoryAccounting(const PartSetup& setup)
      : model_(setup.model), usage_(setup.context.status().usage()) {}

  /// Sizes of this rank's whole parameters, before replicas shard them.
  void configure(PipelineSetup& setup) override {
    setup.options.materialise = [this, inner = setup.options.materialise](const auto& layers) {
      inner(layers);
      for (const model::Layer& layer : layers) {
        for (const auto& [name, parameter] : layer.parameters)
          whole_bytes_[name] = static_cast<std::int64_t>(parameter.nbytes());
      }
    };
  }
  void attach(const TrainerObjects& objects) override {
    objects_.emplace(objects);
    const auto count = [](MemoryKind kind, const auto& tensors) {
      for (const auto& [name, tensor] : tensors) parallel::count_as(kind, tensor);
    };
    for (const at::Tensor& parameter : model_.parameters())
      parallel::count_as(MemoryKind::kWeights, parameter);
    for (const at::Tensor& buffer : model_.buffers()) parallel::count_as(MemoryKind::kWeights, buffer);
    count(MemoryKind::kOptimizer, objects.optimizer.state());
  }
  void gradients_ready(Step& /*step*/) override {
    at_update_ = MemoryLedger::of_process().now();
    if (has_device()) device_at_update_ = parallel::DeviceMemory::of_process().now(device());
  }
  /// Peaks are reset after the first step, so that they do not include set-up.
  void end_step(Step& /*step*/) override {
    if (!has_stepped_) MemoryLedger::of_process().reset_peak();
    if (!has_stepped_ && has_device()) parallel::DeviceMemory::of_process().reset_peak(device());
    has_stepped_ = true;
    if (has_device()) usage_.set_device_memory(parallel::DeviceMemory::of_process().at_peak(device()));
  }
  void report_memory(MemoryReport& report) const override {
    const WeightsMemory common = objects_->groups.has_common_weights(objects_->plan, objects_->model.device)
                                     ? WeightsMemory::kCommon
                                     : WeightsMemory::kOwn;
    report.at_update = at_update_;
    report.at_peak = MemoryLedger::of_process().at_peak();
    if (has_device()) {
      report.device_at_update = device_at_update_;
      report.device_at_peak = parallel::DeviceMemory::of_process().at_peak(device());
    }
    if (objects_->parameters.offload)
      report.offloaded_bytes += objects_->parameters.offload->offloaded_bytes();
    report.formula = state_by_formula(objects_->plan, bytes_of_parameters(common), common);
  }

 private:
  c10::Device device() const { return objects_->model.device; }
  bool has_device() const { return !device().is_cpu(); }
  std::vector<ParameterBytes> bytes_of_parameters(WeightsMemory memory) const {
    const ParallelPlan& plan = objects_->plan;
    const bool decodes = plan.rounds_weights() && memory == WeightsMemory::kOwn;
    std::vector<ParameterBytes> all;
    for (const auto& [name, weight] : objects_->pipeline.weights()) {
      ParameterBytes bytes{.exact = whole_bytes_.at(name)};
      bytes.is_kept =
          bytes.exact / static_cast<std::int64_t>(sizeof(float)) < plan.config().parallel.persistent_below;
      if (plan.is_sharded() && weight.scalar_type() == plan.precision().autocast_to &&
          weight.scalar_type() != at::kFloat)
        bytes.working = bytes.exact / static_cast<std::int64_t>(sizeof(float) / weight.element_size());
      if (decodes && bytes.working == 0 && bytes.exact >= kMinEncodedBytes) bytes.working = bytes.exact;
      all.push_back(bytes);
    }
    return all;
  }

  model::Model& model_;
  telemetry::RankUsage& usage_;
  std::optional<TrainerObjects> objects_;
  std::map<std::string, std::int64_t> whole_bytes_;
  MemoryUse at_update_, device_at_update_;
  bool has_stepped_ = false;
};

}  // namespace

std::unique_ptr<StepPart> make_memory_accounting(const PartSetup& setup) {
  return std::make_unique<MemoryAccounting>(setup);
}

}  // namespace trireme::train
