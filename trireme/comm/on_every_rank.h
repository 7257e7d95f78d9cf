#pragma once
// Work that may fail on one rank and not on others (files, mostly).

#include <functional>

#include "trireme/comm/group.h"

namespace trireme::comm {

/// Runs `work` on every rank of the group, and returns when it is done on all. An error on one rank is thrown
/// on all, so each rank learns of it: that of the first such rank. Collective.
void on_every_rank(Group& group, const std::function<void()>& work);

}  // namespace trireme::comm
