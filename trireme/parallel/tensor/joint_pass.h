#pragma once
// Scope of a pass that the ranks of a group compute together. When an exception leaves it on one rank, in the
// middle of exchanges, the others wait for the rest. They would take the next exchange of this rank for it.
// So the group fails on all ranks, by name. Where this rank had exchanged nothing yet, the group continues
// and the pass may be repeated.
//
//   { const trireme::parallel::JointPass pass(group); loss(model->forward(x), y).backward(); }

#include <cstdint>

#include "trireme/comm/group.h"

namespace trireme::parallel {

class JointPass {
 public:
  explicit JointPass(comm::Group group);
  ~JointPass();
  JointPass(const JointPass&) = delete;
  JointPass& operator=(const JointPass&) = delete;

 private:
  std::uint64_t operations() const;

  comm::Group group_;
  const int exceptions_;            ///< under way when it began
  const std::uint64_t operations_;  ///< that the group had issued then
};

}  // namespace trireme::parallel
