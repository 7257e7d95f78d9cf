// The table of all parts of a step. Hooks are called in its order.
#include <array>

#include "trireme/train/step/internal/all_parts.h"

namespace trireme::train {
namespace {

using MakePart = std::unique_ptr<StepPart> (*)(const PartSetup& setup);

constexpr std::array kParts = {
    MakePart{make_kernel_choices},     // first: the layers are measured with its choice
    MakePart{make_memory_accounting},  // before allocations of an update
    MakePart{make_recomputation},      // wraps layers first
    MakePart{make_activation_offload},
    MakePart{make_layer_graphs},  // wraps layers last
    MakePart{make_exact_sums},
    MakePart{make_server_updates},
    MakePart{make_asynchronous_updates},
    MakePart{make_replica_check},         // before gradients are changed
    MakePart{make_local_sgd},             // sums gradients
    MakePart{make_loss_scaling},          // unscales the sums, and decides which steps are skipped
    MakePart{make_gradient_compression},  // with the scale of the stream
    MakePart{make_lazy_updates},
    MakePart{make_clipping},
    MakePart{make_noise_scale},     // reads the norm that clipping has measured
    MakePart{make_moving_average},  // after all updates are made
    MakePart{make_load_balancing},
    MakePart{make_adapting},  // last: it reads the other parts' entries in a report
};

}  // namespace

StepParts make_step_parts(const PartSetup& setup) {
  StepParts parts;
  for (const MakePart make : kParts) {
    if (auto part = make(setup)) parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace trireme::train
