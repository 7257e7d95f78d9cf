#pragma once
// The layers of a FullyShardedDataParallel in forward and in the hooks of backward. Hooks on the outputs of
// layers, and on parameters, track the place of a pass of autograd. A pass that accumulates into parameters
// reduces their gradients; one that does not (autograd::grad) gathers weights and releases them, no more. The
// graph of a pass with create_graph uses weights in an order that no hook sees: it keeps the weights of the
// layers of the pass, until it is destroyed or used up. The backward of a graph that outlives this object is
// rejected. One thread.

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trireme/model/skips.h"
#include "trireme/optim/wrapped_parameter.h"
#include "trireme/parallel/zero/fully_sharded_data_parallel.h"
#include "trireme/parallel/zero/internal/autograd_pass.h"
#include "trireme/parallel/zero/internal/sharded_weights.h"
#include "trireme/parallel/zero/internal/update_watch.h"

namespace trireme::parallel {

/// A forward of a unit whose graph lives.
struct UnitUse {
  std::vector<const torch::autograd::Node*> nodes = {};  ///< of its outputs
  int pass = -1;                                         ///< the graph task that came to it last
};

/// A layer, the shards of its weights, and where its passes are.
struct Unit {
  model::Layer layer;
  std::unique_ptr<ShardedWeights> weights;
  std::vector<at::Tensor> leaves = {};  ///< of its own parameters, those that learn
  std::vector<std::weak_ptr<UnitUse>> uses = {};
  bool in_pass = false;  ///< the pass has come to it
  bool is_reduced = false;
  int num_left = 0;  ///< gradients of leaves that this pass still brings

  /// The pass of that graph task will come to it, or come to it again.
  bool is_expected(int pass);
};

/// Weights in memory for a graph of gradients (create_graph). Its hooks hold this.
struct GraphWeights {
  std::vector<std::shared_ptr<void>> kept;            ///< of units
  std::vector<std::shared_ptr<GraphWeights>> before;  ///< of graphs that this one was derived from
  bool is_held = false;                               ///< by a hook

  void drop() {
    kept.clear();
    before.clear();
  }
};

class FullyShardedDataParallel::Passes : public std::enable_shared_from_this<Passes> {
 public:
  Passes(comm::Group group, std::vector<model::Layer> layers, const FullyShardedOptions& options, Log log);
  ~Passes();
  Passes(const Passes&) = delete;
  Passes& operator=(const Passes&) = delete;
  /// Once, when a shared pointer holds this.
  void hook_leaves();

  Fields forward(const Fields& input);
  void zero_grad();
  double clip_grad_norm(double max_norm);
  void weights_changed() {
    for (Unit& unit : units_) unit.weights->changed();
  }
  double waited_s() const;

  bool reduces = true;  ///< no pass is under no_sync
  optim::NamedTensors parameters, buffers;
  Pieces pieces;

 private:
  class PassEnd;
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  /// Of autograd, under way.
  struct Pass {
    int task;
    bool accumulates;                     ///< into parameters
    std::shared_ptr<GraphWeights> graph;  ///< null: it makes none
    std::vector<std::shared_ptr<GraphWeights>> used_up = {};
    bool comes_from_graph = false;  ///< through the graph of another pass, in an order that no hook sees
  };
  struct LeafHook {
    at::Tensor leaf;
    unsigned hook;
  };

  void add_unit(model::Layer layer, const FullyShardedOptions& options,
                const std::shared_ptr<BucketPool>& buckets, const std::set<std::string>& shared);
  void add_shared(const FullyShardedOptions& options, const std::set<std::string>& shared);
  void hook_leaf(const at::Tensor& leaf, std::size_t unit);
  void check_modules() const;
  Fields hook_inputs(const Fields& input);
  Fields compute(std::size_t number, const Fields& values);
  void hook_output(const at::Tensor& output, std::size_t number, const std::shared_ptr<UnitUse>& use);

  // Hooks.
  at::Tensor on_output(std::size_t number, UnitUse& use, const torch::autograd::Node* node,
                       const at::Tensor& gradient);
  at::Tensor on_graph(const std::shared_ptr<GraphWeights>& graph, const at::Tensor& gradient);
  void on_leaf(const at::Tensor& leaf, std::size_t unit);

  bool is_in_pass() const;
  at::Tensor watched(const at::Tensor& gradient);
  void begin_pass();
  void begin_reduction();
  void enter(std::size_t number);
  void leave();
  void reduce(Unit& unit);
  void end_pass();
  void end_reduction();
  void drop_pass();
  /// Layers that are gathered, or on their way.
  std::size_t at_a_time() const { return gathered_ == 0 ? 2 : static_cast<std::size_t>(gathered_); }

  const std::shared_ptr<const optim::Wrapper> wrapper_ =
      std::make_shared<optim::Wrapper>(optim::Wrapper{"FullyShardedDataParallel"});
  comm::Group group_, shards_;
  const int gathered_;  ///< layers at a time; 0: until their backward
  std::vector<model::SkipNames> carried_;
  std::vector<Unit> units_;
  std::vector<LeafHook> leaf_hooks_;  ///< of all units, and of shared parameters
  optim::NamedTensors shared_parameters_;
  std::vector<bool> shared_learn_;         ///< by shared parameter, when it was wrapped
  std::set<const at::TensorImpl*> known_;  ///< parameters of the layers' modules, when these were wrapped
  std::optional<DistributedDataParallel> shared_;  ///< parameters of several layers that learn
  std::optional<DistributedDataParallel::NoSync> shared_adds_up_;
  bool in_step_ = false;  ///< gradients that are kept, or reduced, since the last reduction ended
  std::optional<Pass> pass_;
  UpdateWatch watch_;
  std::size_t current_ = kNone;                              ///< the unit that the pass computes gradients of
  std::vector<std::shared_ptr<GraphWeights>> without_hook_;  ///< until the next pass that accumulates
};

}  // namespace trireme::parallel
