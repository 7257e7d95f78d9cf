#pragma once
// The boxes of a parameter that is cut along one dim.

#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/model/parameter_box.h"
#include "trireme/parallel/tensor/cut.h"

namespace trireme::parallel {

/// One box for each part of the cut; together they fill `parameter`, which has the part of `group`'s rank, or
/// its sizes, where it has no memory now.
std::vector<model::ParameterBox> boxes_of(const std::string& name, const at::Tensor& parameter,
                                          const std::vector<std::int64_t>& global_sizes, std::int64_t dim,
                                          const DimCut& cut, const comm::Group& group);

}  // namespace trireme::parallel
