#include "trireme/train/parts/internal/offloading.h"

#include "trireme/base/text.h"
#include "trireme/model/activation_store.h"
#include "trireme/train/plan/internal/fixes.h"
#include "trireme/train/step/internal/all_parts.h"

namespace trireme::train {

namespace {

/// Only for a device is host memory another place.
void check_place(const ParallelPlan& plan, const char* key, const std::string optim::OffloadOptions::*where) {
  const std::string& place = plan.config().offload.*where;
  if (optim::offload_place_of(place) != optim::OffloadPlace::kHost || plan.device() != c10::kCPU) return;
  throw PlanError(
      text("offload.", key, " = \"", place,
           "\": this run computes on the CPU, and what it computes with is in the host's memory "
           "already; \"files\" keeps it out of there"),
      {set(&RunConfig::offload, const_cast<std::string optim::OffloadOptions::*>(where), "files"),
       set(&RunConfig::offload, const_cast<std::string optim::OffloadOptions::*>(where), "none")});
}

void check_activations(const ParallelPlan& plan) {
  check_place(plan, "activations", &optim::OffloadOptions::activations);
  if (!plan.offloads_activations() || !plan.config().parallel.recompute) return;
  throw PlanError(text("offload.activations = \"", plan.config().offload.activations,
                       "\" with parallel.recompute = true: stages keep nothing but their inputs until their "
                       "backward, and nothing is left to offload; recompute layers instead, whose inputs "
                       "can (train.recompute_layers = [\"*\"])"),
                  {[](RunConfig& changed) {
                     changed.parallel.recompute = false;
                     changed.train.recompute_layers = {"*"};
                   },
                   set(&RunConfig::offload, &optim::OffloadOptions::activations, "none")});
}

constexpr double kMib = 1024.0 * 1024.0;

}  // namespace

std::filesystem::path offload_folder(const RunConfig& config) {
  return config.offload.folder.empty() ? config.run_folder() : std::filesystem::path(config.offload.folder);
}

std::filesystem::path existing_folder(std::filesystem::path folder) {
  std::error_code none;
  folder = std::filesystem::absolute(folder, none);
  while (!std::filesystem::is_directory(folder, none) && folder.has_relative_path())
    folder = folder.parent_path();
  return folder;
}

void check_offloading(const ParallelPlan& plan) {
  check_place(plan, "optimizer", &optim::OffloadOptions::optimizer);
  check_place(plan, "parameters", &optim::OffloadOptions::parameters);
  check_activations(plan);
  if (!plan.offloads_parameters()) return;
  const RunConfig& config = plan.config();
  const std::string what = text("offload.parameters = \"", config.offload.parameters, "\"");
  const Fix in_memory = set(&RunConfig::offload, &optim::OffloadOptions::parameters, "none");
  const auto reject_if = [&](bool found, Fixes fixes, const auto&... reason) {
    fixes.push_back(in_memory);
    if (found) throw PlanError(text(what, reason...), fixes);
  };
  reject_if(plan.zero() != parallel::ZeroStage::kParameters,
            {set(&RunConfig::parallel, &ParallelOptions::zero, 3)},
            " with parallel.zero = ", config.parallel.zero,
            ": weights are kept whole between their uses; set parallel.zero = 3, or leave that key out");
  reject_if(plan.weight_copies() == 1, {}, ": one rank has the weights, and nothing is sharded; ",
            "start it with more ranks, or leave that key out");
  reject_if(config.train.ema_decay > 0, {set(&RunConfig::train, &TrainOptions::ema_decay, 0)},
            " with train.ema_decay = ", config.train.ema_decay,
            ": averages and weights change places for an evaluation, in memory; leave one of the two out");
}

std::shared_ptr<optim::Offload> offload_for(const ParallelPlan& plan, const comm::Context& context,
                                            c10::Device device) {
  if (!plan.offloads()) return nullptr;
  const RunConfig& config = plan.config();
  return std::make_shared<optim::Offload>(
      optim::Offload::Options{.folder = offload_folder(config),
                              .owner = text("rank ", context.rank()),
                              .part_bytes = static_cast<std::int64_t>(config.offload.part_mib * kMib),
                              .device = device,
                              .state = optim::offload_place_of(config.offload.optimizer),
                              .parameters = optim::offload_place_of(config.offload.parameters)});
}

namespace {

/// offload.activations: tensors that layers save for their backward are offloaded.
class ActivationOffload final : public StepPart {
 public:
  explicit ActivationOffload(const PartSetup& setup) {
    const optim::OffloadOptions& offload = setup.plan.config().offload;
    const bool in_files = optim::offload_place_of(offload.activations) == optim::OffloadPlace::kFiles;
    store_ = std::make_shared<model::ActivationStore>(model::ActivationStoreOptions{
        .folder = in_files ? offload_folder(setup.plan.config()) : "",
        .owner = text("rank ", setup.context.rank()),
        .device = setup.device,
        .bytes_under_way = static_cast<std::int64_t>(3 * offload.part_mib * kMib)});
  }

  void configure(PipelineSetup& setup) override {
    for (model::Layer& layer : setup.layers) layer = model::kept_in(store_, std::move(layer));
  }
  void report_memory(MemoryReport& report) const override {
    report.offloaded_bytes += store_->max_kept_bytes();
  }

 private:
  std::shared_ptr<model::ActivationStore> store_;
};

}  // namespace

std::unique_ptr<StepPart> make_activation_offload(const PartSetup& setup) {
  return setup.plan.offloads_activations() ? std::make_unique<ActivationOffload>(setup) : nullptr;
}

std::shared_ptr<const checkpoint::OffloadedStorage> offloaded_storage_of(
    const std::shared_ptr<optim::Offload>& offload) {
  if (offload == nullptr) return nullptr;
  return std::make_shared<checkpoint::OffloadedStorage>(checkpoint::OffloadedStorage{
      .fetch = [offload](const at::Tensor& view) { return offload->fetch(view); },
      .put = [offload](const at::Tensor& view, const at::Tensor& values) { offload->put(view, values); }});
}

}  // namespace trireme::train
