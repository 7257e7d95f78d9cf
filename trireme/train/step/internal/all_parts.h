#pragma once
// The make functions of all parts of a step (step_part.h), one for each row of the table in step_parts.cpp.
// Null where the plan does not ask for the part. Collective.

#include <memory>

#include "trireme/base/text.h"
#include "trireme/train/step/internal/step_part.h"

namespace trireme::train {

std::unique_ptr<StepPart> make_adapting(const PartSetup& setup);
std::unique_ptr<StepPart> make_activation_offload(const PartSetup& setup);
std::unique_ptr<StepPart> make_asynchronous_updates(const PartSetup& setup);
std::unique_ptr<StepPart> make_clipping(const PartSetup& setup);
std::unique_ptr<StepPart> make_exact_sums(const PartSetup& setup);
std::unique_ptr<StepPart> make_gradient_compression(const PartSetup& setup);
std::unique_ptr<StepPart> make_kernel_choices(const PartSetup& setup);
std::unique_ptr<StepPart> make_layer_graphs(const PartSetup& setup);
std::unique_ptr<StepPart> make_lazy_updates(const PartSetup& setup);
std::unique_ptr<StepPart> make_load_balancing(const PartSetup& setup);
std::unique_ptr<StepPart> make_local_sgd(const PartSetup& setup);
std::unique_ptr<StepPart> make_loss_scaling(const PartSetup& setup);
std::unique_ptr<StepPart> make_memory_accounting(const PartSetup& setup);
std::unique_ptr<StepPart> make_moving_average(const PartSetup& setup);
std::unique_ptr<StepPart> make_noise_scale(const PartSetup& setup);
std::unique_ptr<StepPart> make_recomputation(const PartSetup& setup);
std::unique_ptr<StepPart> make_replica_check(const PartSetup& setup);
std::unique_ptr<StepPart> make_server_updates(const PartSetup& setup);

}  // namespace trireme::train
