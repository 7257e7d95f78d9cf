#pragma once
// What a program with its own training loop needs, under one name each. Everything else is included by
// module.

#include "trireme/base/error.h"
#include "trireme/base/run_main.h"
#include "trireme/comm/context.h"
#include "trireme/comm/mesh.h"
#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/parallel/data/sync_batch_norm.h"

namespace trireme {

using comm::Context;
using comm::ContextOptions;
using comm::Group;
using comm::Mesh;
using comm::ReduceOp;
using parallel::DataParallelOptions;
using parallel::DistributedDataParallel;

}  // namespace trireme
