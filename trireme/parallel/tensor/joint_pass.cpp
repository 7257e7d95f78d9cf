#include "trireme/parallel/tensor/joint_pass.h"

#include <exception>
#include <utility>

#include "trireme/model/checkpointed.h"

namespace trireme::parallel {

JointPass::JointPass(comm::Group group)
    : group_(std::move(group)), exceptions_(std::uncaught_exceptions()), operations_(operations()) {}

JointPass::~JointPass() {
  if (group_.size() == 1 || std::uncaught_exceptions() <= exceptions_ || operations() == operations_) return;
  if (model::is_leaving_second_run()) return;  // expected: all ranks leave at the same place
  group_.fail("a pass that all ranks compute together ended early by an exception");
}

std::uint64_t JointPass::operations() const {
  const auto records = group_.recent_operations();
  return records.empty() ? 0 : records.back().number;
}

}  // namespace trireme::parallel
