#pragma once
// Another group of the same ranks, with connections of its own: what goes over it neither waits for the
// operations of the first one nor holds them up, and another thread may issue it.

#include <string>

#include "trireme/comm/group.h"

namespace trireme::comm {

/// Named "GROUP.WISH" or, where there was one, "GROUP.WISH#2". It fails with `group`, and `group` with it,
/// with the first cause of either. Collective, and costs what making a group does. Throws CommError.
Group clone_group(const Group& group, const std::string& wish);

}  // namespace trireme::comm
