#include "trireme/parallel/data/distributed_data_parallel.h"

#include <array>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/parallel/data/internal/reducer.h"
#include "trireme/parallel/data/internal/replicas.h"
#include "trireme/parallel/data/sparse_embeddings.h"

namespace trireme::parallel {
namespace {

struct UnusedRow {
  const char* name;
  UnusedParameters value;
};

constexpr std::array kUnused = {UnusedRow{"error", UnusedParameters::kError},
                                UnusedRow{"find", UnusedParameters::kFind},
                                UnusedRow{"static", UnusedParameters::kStatic}};

Replica replica_of(const std::shared_ptr<torch::nn::Module>& module) {
  require(module != nullptr, "DistributedDataParallel needs a module");
  reject_sparse_embeddings(*module, "");
  Replica replica;
  for (const auto& item : module->named_parameters())
    replica.parameters.emplace_back(item.key(), item.value());
  for (const auto& item : module->named_buffers()) replica.buffers.emplace_back(item.key(), item.value());
  return replica;
}

}  // namespace

UnusedParameters unused_parameters_of(const std::string& name) {
  for (const UnusedRow& row : kUnused) {
    if (name == row.name) return row.value;
  }
  const auto names = unused_parameters_names();
  throw InvalidArgument(
      text("there is no way '", name, "' to treat unused parameters", suggest(name, names)));
}

std::vector<std::string> unused_parameters_names() {
  std::vector<std::string> names;
  for (const UnusedRow& row : kUnused) names.emplace_back(row.name);
  return names;
}

DistributedDataParallel::DistributedDataParallel(comm::Context& context,
                                                 std::shared_ptr<torch::nn::Module> module,
                                                 const DataParallelOptions& options)
    : DistributedDataParallel(context.world(), std::move(module), options) {}

DistributedDataParallel::DistributedDataParallel(comm::Group group, std::shared_ptr<torch::nn::Module> module,
                                                 const DataParallelOptions& options)
    : DistributedDataParallel(std::move(group), replica_of(module), options) {
  reducer_->module = std::move(module);
}

DistributedDataParallel::DistributedDataParallel(comm::Group group, Replica replica,
                                                 const DataParallelOptions& options) {
  check_replicas(group, replica, options);
  reducer_ = std::make_shared<Reducer>(std::move(group), std::move(replica), options);
  reducer_->broadcast_state(/*from=*/0);
  reducer_->attach();
}

DistributedDataParallel::~DistributedDataParallel() {
  if (reducer_) reducer_->detach();
}

void DistributedDataParallel::reduce_without_backward() {
  if (reducer_->group.size() > 1) reducer_->join_and_keep();
}

void DistributedDataParallel::start_reduction() {
  if (reducer_->group.size() > 1) reducer_->start_reduction();
}

void DistributedDataParallel::finish_reduction() { reducer_->finish_reduction(); }

void DistributedDataParallel::finish_reduction(const optim::NamedTensors& parameters) {
  reducer_->finish_reduction(parameters);
}

void DistributedDataParallel::zero_grad() { reducer_->zero_grad(); }

DistributedDataParallel::Statistics DistributedDataParallel::statistics() const {
  return reducer_->statistics;
}

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& ddp)
    : ddp_(ddp), before_(std::exchange(ddp.reducer_->synchronise, false)) {
  ddp.reducer_->is_checked = false;
}

DistributedDataParallel::NoSync::~NoSync() { ddp_.reducer_->synchronise = before_; }

}  // namespace trireme::parallel
