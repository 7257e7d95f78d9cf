#pragma once
// Another group of the same ranks, with connections of its own. Its operations neither wait for those of the
// first group nor delay them, and another thread may issue them.

#include <string>

#include "trireme/comm/group.h"

namespace trireme::comm {

/// Named "GROUP.WISH" or, where that name is taken, "GROUP.WISH#2". It fails with `group`, and `group` with
/// it, with the first cause of either. Collective, at the cost of making a group. Throws CommError.
Group clone_group(const Group& group, const std::string& wish);

}  // namespace trireme::comm
