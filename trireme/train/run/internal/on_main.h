#pragma once
// Work with files, which rank 0 alone does.

#include <functional>

#include "trireme/comm/context.h"

namespace trireme::train {

/// Runs `work` on rank 0, and returns when it is done. An error that it throws is thrown on every rank, so
/// that no rank has to tell of another's. Collective.
void on_main(comm::Context& context, const std::function<void()>& work);

}  // namespace trireme::train
