#pragma once
// The engine of a pipeline's rank: runs its list of the program, action by action and update by update, for
// the micro-batches of a stream in rising order. An interface hides the storage of a stage's weights and the
// reduction of its gradients (stage_weights.h). A stage may be on several ranks: each micro-batch runs on the
// one that the program names, and the gradients of all are added up. One thread.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trireme/optim/wrapped_parameter.h"
#include "trireme/parallel/executor.h"
#include "trireme/parallel/pipeline/internal/common_parameters.h"
#include "trireme/parallel/pipeline/internal/other_stages.h"
#include "trireme/parallel/pipeline/internal/output_shapes.h"
#include "trireme/parallel/pipeline/internal/stage.h"
#include "trireme/parallel/pipeline/internal/stage_weights.h"
#include "trireme/parallel/pipeline/internal/tied_parameters.h"
#include "trireme/parallel/pipeline/internal/transfers.h"
#include "trireme/parallel/pipeline/pipeline.h"

namespace trireme::parallel {

class Engine {
 public:
  Engine(comm::Context& context, PipelineGroups groups, schedule::Program program,
         const std::vector<model::Layer>& layers, const PipelineOptions& options);

  /// Begins the program from its first action.
  void begin(Pipeline::Stream stream);
  /// Up to and with the next update of this rank; at the end everything that was sent has been delivered.
  void run_to_update(std::uint64_t number);
  /// For programs that update in the middle: another one, between two streams; and one that continues where
  /// this one is.
  void set_program(schedule::Program program);
  void continue_with(schedule::Program program);
  bool at_end() const { return executor_.at_end(); }
  /// Updates of this rank in the whole program.
  int num_updates() const;
  /// Sum of weight * loss of the forwards of the last stage since the last call; 0 on other ranks.
  /// Micro-batches are added in the order in which ranks are, or as exact_sum() adds them.
  UnreadLoss take_loss();

  Fields evaluate(const Fields& inputs);
  void sit_out_evaluation() {
    for_each_shown_stage([](std::size_t) {});
  }
  void finish_gradients(const optim::NamedTensors& parameters);
  void zero_grad();
  double clip_grad_norm(double max_norm);
  /// Parameters (where there are several versions, the newest) and buffers of this rank.
  Replica replica() const;
  Pieces pieces() const;
  optim::NamedTensors weights() const;
  void weights_changed();
  void free_other_stages() { other_stages_.free(); }

  const schedule::Program& program() const { return executor_.program(); }
  int last_stage() const { return static_cast<int>(stages_.size()) - 1; }
  bool has(int stage) const { return mine_.contains(stage); }
  const std::vector<Pipeline::StageLayers>& stages() const { return stages_; }
  bool shares_parameters() const { return tied_.any(); }
  int peak_live() const { return peak_live_; }
  Pipeline::Staleness staleness() const;
  std::set<std::string> unsplit() const;
  double waited_s() const;
  std::int64_t sent_bytes() const { return transfers_.sent_bytes(); }

 private:
  using Action = schedule::Action;
  using Tensors = model::Tensors;
  /// The tensors of one micro-batch at one stage.
  using Place = std::pair<int, int>;
  using Departures = std::map<Place, Fields>;
  using Arrivals = std::map<Place, Arrival>;

  void add_stage(int number, const std::vector<model::Layer>& layers, const PipelineOptions& options);
  std::vector<at::Tensor> own_parameters() const;
  void hold_weights(const PipelineGroups& groups, const PipelineOptions& options);
  void leave_to_others(const std::vector<model::Layer>& layers);
  void check_versions(const PipelineGroups& groups) const;
  ActionHandlers handlers();

  bool is_asynchronous() const { return program().update_every > 0; }
  const std::vector<Action>& actions() const {
    return program().ranks[static_cast<std::size_t>(group_.rank())];
  }
  Stage& local(int stage) { return mine_.at(stage); }
  StageWeights& weights_of(const Action& action) { return *weights_.at(action.stage); }
  /// Which rank runs the micro-batch there.
  int rank_of(int stage, int microbatch) const { return runs_on_.at({stage, microbatch}); }
  bool is_local(int stage, int microbatch) const { return rank_of(stage, microbatch) == group_.rank(); }
  static Place place_of(const Action& action) { return {action.stage, action.microbatch}; }
  static Fields take(Departures& tensors, const Place& place) { return tensors.extract(place).mapped(); }
  Fields take(Arrivals& arrivals, const Place& place) {
    return transfers_.wait(std::move(arrivals.extract(place).mapped()));
  }

  const MicroBatch& microbatch(int number);
  const MicroBatch& microbatch(const Action& action) { return microbatch(action.microbatch); }
  bool is_empty(const Action& action) { return microbatch(action).rows() == 0; }
  std::optional<Transfers::Incoming> next_incoming();
  void send(Departures& departures, const Action& action);
  void map_program();

  void for_each_shown_stage(const std::function<void(std::size_t)>& compute);
  void with_weights(const Action& action, void (Engine::*work)(const Action&));
  void forward(const Action& action);
  void backward(const Action& action);
  void backward_input(const Action& action);
  void backward_weight(const Action& action) { local(action.stage).backward_weight(action.microbatch); }
  void recompute(const Action& action) { local(action.stage).recompute(action.microbatch); }
  void update();
  bool has_samples_of_update();
  /// Tensors for the stage after `stage`; none for the last one.
  const EdgeSpec& edge_behind(int stage, int microbatch);
  void check_outputs(const Action& action, const Fields& outputs);
  Tensors take_output_gradients(const Action& action);
  void give_input_gradients(const Action& action, Tensors gradients);
  at::Tensor loss_of(const Fields& outputs, int microbatch);

  at::TensorOptions options_of(at::ScalarType type) const { return at::device(device_).dtype(type); }

  comm::Group group_;
  const c10::Device device_;
  const bool exact_;
  const std::uint64_t transfers_seed_;  ///< of this replica's random numbers for its messages
  const std::function<void()> update_;
  const std::function<void(int)> before_compute_;
  std::optional<comm::Group>
      shards_;  ///< over which parameters are sharded; none: each rank has its stages' whole
  const std::shared_ptr<const optim::Wrapper> wrapper_ =
      std::make_shared<optim::Wrapper>(optim::Wrapper{"Pipeline"});
  const std::vector<Pipeline::StageLayers> stages_;
  const std::vector<model::SkipNames> skips_;  ///< that travel to each layer
  std::map<int, Stage> mine_;                  ///< by the number of the stage
  WeightsOfStages weights_;
  OtherStages other_stages_;
  TiedParameters tied_;
  std::optional<CommonParameters> common_;
  Transfers transfers_;
  Executor executor_;
  OutputShapes shapes_;

  // Of the program:
  std::map<Place, int> runs_on_;

  // Of the stream:
  Pipeline::Stream stream_;
  std::map<int, MicroBatch> batch_;  ///< those that this rank has not done with
  int num_fed_ = 0;
  std::uint64_t num_updates_ = 0;
  std::uint64_t update_under_way_ = 0;    ///< its number, as the caller counts
  std::vector<int> done_, done_before_;   ///< micro-batches since the last update, and the one before
  std::size_t next_receive_ = 0;          ///< in actions(): where to look for the next receive
  std::size_t num_steps_left_ = 0;        ///< stages whose STEP is still to come before the update
  Arrivals inputs_, output_gradients_;    ///< inputs of a stage
  Departures outputs_, input_gradients_;  ///< outputs to another rank
  struct Loss {
    double weight = 0;
    at::Tensor value;
  };
  std::map<int, Loss> losses_;  ///< by micro-batch
  int peak_live_ = 0;
};

}  // namespace trireme::parallel
