#include "trireme/train/run/run_memory.h"

namespace trireme::train {

std::vector<checkpoint::HeldState> RunMemory::states() const {
  std::vector<checkpoint::HeldState> states = copies_;
  if (own_) states.push_back(*own_);
  return states;
}

void RunMemory::forget_older_copies() {
  if (copies_.size() > 1) copies_.erase(copies_.begin(), copies_.end() - 1);
}

}  // namespace trireme::train
