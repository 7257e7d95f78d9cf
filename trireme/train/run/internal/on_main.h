#pragma once
// Work with files, which rank 0 alone does.

#include <functional>

#include "trireme/comm/context.h"

namespace trireme::train {

/// Runs `work` on rank 0, and returns when it is done. An error of it is thrown on every rank, so every rank
/// learns of it. Collective.
void on_main(comm::Context& context, const std::function<void()>& work);

}  // namespace trireme::train
