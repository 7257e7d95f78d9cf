#include "trireme/parallel/data/distributed_data_parallel.h"

#include <utility>

#include "trireme/base/error.h"
#include "trireme/model/convolution_rule.h"
#include "trireme/parallel/data/internal/reducer.h"
#include "trireme/parallel/data/internal/replicas.h"

namespace trireme::parallel {

DistributedDataParallel::DistributedDataParallel(comm::Context& context,
                                                 std::shared_ptr<torch::nn::Module> module,
                                                 const DataParallelOptions& options)
    : DistributedDataParallel(context.world(), std::move(module), options) {}

DistributedDataParallel::DistributedDataParallel(comm::Group group, std::shared_ptr<torch::nn::Module> module,
                                                 const DataParallelOptions& options) {
  require(module != nullptr, "DistributedDataParallel needs a module");
  check_replicas(group, *module, options);
  if (options.convolution_rule) model::follow_convolution_rule();
  reducer_ = std::make_shared<Reducer>(std::move(group), std::move(module), options);
  reducer_->broadcast_state(/*from=*/0);
  reducer_->attach();
}

DistributedDataParallel::~DistributedDataParallel() {
  if (reducer_) reducer_->detach();
}

torch::nn::Module& DistributedDataParallel::module() { return *reducer_->module; }

void DistributedDataParallel::zero_grad() { reducer_->zero_grad(); }

DistributedDataParallel::Statistics DistributedDataParallel::statistics() const {
  return reducer_->statistics;
}

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& ddp)
    : ddp_(ddp), before_(std::exchange(ddp.reducer_->synchronise, false)) {}

DistributedDataParallel::NoSync::~NoSync() { ddp_.reducer_->synchronise = before_; }

}  // namespace trireme::parallel
