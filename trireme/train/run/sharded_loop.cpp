#include "trireme/train/run/sharded_loop.h"

#include <memory>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/train/step/shard_specs.h"

namespace trireme::train {
namespace {

void require_complete(const parallel::FullyShardedDataParallel&) {}
void require_complete(const parallel::Pipeline& pipeline) {
  require(
      pipeline.drained(),
      "micro-batches are under way in the pipeline, so that its stages are at different updates; save and "
      "restore when it is drained: after finish_after() and the last advance()");
}

/// For FullyShardedDataParallel and Pipeline: both have parameters(), pieces(), buffers().
template <class Parallel>
class PartsOf final : public checkpoint::LoopWeights {
 public:
  explicit PartsOf(Parallel& whole) : whole_(whole) {}

  void check() const override { require_complete(whole_); }
  optim::NamedTensors parameters() const override { return whole_.parameters(); }
  optim::NamedTensors buffers() const override { return whole_.buffers(); }
  checkpoint::Shards shards_of(const checkpoint::TensorMap& tensors) const override {
    return train::shards_of(tensors, {.pieces = whole_.pieces()});
  }
  std::vector<std::int64_t> own_sizes(const std::string& parameter, at::IntArrayRef whole) const override {
    const parallel::Pieces& pieces = whole_.pieces();
    const auto piece = pieces.find(parameter);
    const bool is_cut = piece != pieces.end() && whole == at::IntArrayRef(piece->second.global_sizes);
    return is_cut ? piece->second.sizes : whole.vec();
  }
  void changed() override { whole_.weights_changed(); }

 private:
  Parallel& whole_;
};

template <class Parallel>
std::shared_ptr<checkpoint::LoopWeights> parts_of(Parallel& whole) {
  return std::make_shared<PartsOf<Parallel>>(whole);
}

}  // namespace

checkpoint::LoopModel sharded_loop(parallel::FullyShardedDataParallel& sharded, optim::Optimizer& optimizer) {
  return {parts_of(sharded), optimizer};
}

checkpoint::LoopModel sharded_loop(parallel::FullyShardedDataParallel& sharded,
                                   std::vector<torch::optim::Optimizer*> optimizers) {
  return checkpoint::LoopModel(parts_of(sharded), std::move(optimizers));
}

checkpoint::LoopModel pipeline_loop(parallel::Pipeline& pipeline, optim::Optimizer& optimizer) {
  return {parts_of(pipeline), optimizer};
}

checkpoint::LoopModel pipeline_loop(parallel::Pipeline& pipeline,
                                    std::vector<torch::optim::Optimizer*> optimizers) {
  return checkpoint::LoopModel(parts_of(pipeline), std::move(optimizers));
}

}  // namespace trireme::train
