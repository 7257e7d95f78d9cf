#include "trireme/train/step/model_state.h"

namespace trireme::train {

checkpoint::TensorMap state_of(const torch::nn::Module& module) {
  checkpoint::TensorMap state;
  for (const auto& item : module.named_parameters()) state.emplace(item.key(), item.value().detach());
  for (const auto& item : module.named_buffers()) state.emplace(item.key(), item.value().detach());
  return state;
}

}  // namespace trireme::train
