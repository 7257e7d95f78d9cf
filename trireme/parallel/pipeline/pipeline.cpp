#include "trireme/parallel/pipeline/pipeline.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <set>

#include "trireme/base/error.h"
#include "trireme/model/convolution_rule.h"
#include "trireme/parallel/data/internal/replicas.h"
#include "trireme/parallel/executor.h"
#include "trireme/parallel/pipeline/internal/output_shapes.h"
#include "trireme/parallel/pipeline/internal/placement.h"
#include "trireme/parallel/pipeline/internal/stage.h"
#include "trireme/parallel/pipeline/internal/tied_parameters.h"
#include "trireme/parallel/pipeline/internal/transfers.h"
#include "trireme/telemetry/trace.h"

namespace trireme::parallel {
namespace {

using schedule::Action;
using schedule::ActionKind;

/// Part `index` of a batch; parts differ by at most one sample.
at::Tensor part_of(const at::Tensor& batch, int index, int num_parts) {
  const std::int64_t size = batch.size(0), least = size / num_parts, longer = size % num_parts;
  const auto begin_of = [&](std::int64_t i) { return i * least + std::min(i, longer); };
  return batch.slice(0, begin_of(index), begin_of(index + 1));
}

/// Those of `from` whose names are new.
void add_named(optim::NamedTensors& to, const optim::NamedTensors& from) {
  for (const auto& item : from) {
    const auto has_name = [&](const auto& known) { return known.first == item.first; };
    if (std::none_of(to.begin(), to.end(), has_name)) to.push_back(item);
  }
}

void add_tensors_of(const Stage& stage, Replica& replica) {
  for (const model::Layer& layer : stage.layers()) {
    add_named(replica.parameters, layer.parameters);
    add_named(replica.buffers, layer.buffers);
  }
}

bool learns(const Replica& replica) {
  return std::any_of(replica.parameters.begin(), replica.parameters.end(),
                     [](const auto& item) { return item.second.requires_grad(); });
}

bool finishes_weight_gradient(const Action& action) {
  return action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight;
}

}  // namespace

class Pipeline::Impl {
 public:
  Impl(comm::Context& context, PipelineGroups groups, schedule::Program the_program,
       const std::vector<model::Layer>& layers, const PipelineOptions& options)
      : group_(std::move(groups.pipeline)),
        update_(options.update),
        stages_(place_stages(the_program, layers, options.cuts)),
        tied_(group_, layers, stages_),
        transfers_(group_),
        executor_(std::move(the_program), group_.rank(), handlers(), context.status(),
                  telemetry::main_of(context.trace())),
        shapes_(group_, stages_, mine_) {
    check_same_pipeline(group_, program(), layers, stages_, options);
    if (options.convolution_rule) model::follow_convolution_rule();
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (stages_[i].rank == group_.rank()) add_stage(static_cast<int>(i), layers, options);
    }
    if (has(last_stage()))
      local(last_stage()).set_head([this](const at::Tensor& output, int m) { return loss_of(output, m); });
    tied_.make_equal();
    if (groups.data && groups.data->size() > 1) replicate(*groups.data, options.data_parallel);
  }

  double run(const std::vector<MicroBatch>& batch, const Loss& loss, const StepOptions& options);
  double step(const at::Tensor& input, const at::Tensor& target, const Loss& loss);
  at::Tensor evaluate(const at::Tensor& input);
  void zero_grad();

  const schedule::Program& program() const { return executor_.program(); }
  int last_stage() const { return static_cast<int>(stages_.size()) - 1; }
  bool has(int stage) const { return mine_.contains(stage); }
  const std::vector<StageLayers>& stages() const { return stages_; }
  Replica replica() const;
  std::set<std::string> unsplit() const;
  bool shares_parameters() const { return tied_.any(); }
  int peak_live() const { return peak_live_; }
  double waited_s() const;

 private:
  /// A tensor of one micro-batch at one stage.
  using Place = std::pair<int, int>;
  using Tensors = std::map<Place, at::Tensor>;
  using Arrivals = std::map<Place, Arrival>;

  void add_stage(int number, const std::vector<model::Layer>& layers, const PipelineOptions& options);
  void replicate(const comm::Group& data, DataParallelOptions options);

  ActionHandlers handlers();
  Stage& local(int stage) { return mine_.at(stage); }
  int rank_of(int stage) const { return stages_[static_cast<std::size_t>(stage)].rank; }
  bool is_local(int stage) const { return rank_of(stage) == group_.rank(); }
  static Place place_of(const Action& action) { return {action.stage, action.microbatch}; }
  static at::Tensor take(Tensors& tensors, const Place& place) { return tensors.extract(place).mapped(); }
  at::Tensor take(Arrivals& arrivals, const Place& place) {
    return transfers_.wait(std::move(arrivals.extract(place).mapped()));
  }

  const MicroBatch& microbatch(const Action& action) const {
    return (*batch_)[static_cast<std::size_t>(action.microbatch)];
  }
  bool is_empty(const Action& action) const {
    return action.microbatch >= 0 && microbatch(action).input.size(0) == 0;
  }
  void forward(const Action& action);
  void backward(const Action& action);
  void weight_gradient(const Action& action, const std::function<void()>& compute);
  void update();
  void check_output(const Action& action, const at::Tensor& output);
  at::Tensor loss_of(const at::Tensor& output, int microbatch);

  std::vector<Transfers::Incoming> incoming();
  void begin(const std::vector<MicroBatch>& batch, const Loss& loss, const StepOptions& options);

  comm::Group group_;
  const std::function<void()> update_;
  const std::vector<StageLayers> stages_;
  std::map<int, Stage> mine_;                        ///< by the number of the stage
  std::map<int, DistributedDataParallel> replicas_;  ///< of my stages, where they have any and learn
  std::map<int, int> num_weight_gradients_;          ///< of each of my stages, in a step
  TiedParameters tied_;
  Transfers transfers_;
  Executor executor_;
  OutputShapes shapes_;
  std::uint64_t num_steps_ = 0;

  // Of the step under way:
  const std::vector<MicroBatch>* batch_ = nullptr;
  const Loss* loss_ = nullptr;
  double gradient_scale_ = 1;
  std::map<int, int> num_left_;                        ///< weight gradients still to come
  std::size_t num_steps_left_ = 0;                     ///< stages whose STEP is still to come
  Arrivals inputs_, output_gradients_;                 ///< what a stage gets
  Tensors outputs_, input_gradients_;                  ///< what it gives to another rank
  std::vector<std::pair<double, at::Tensor>> losses_;  ///< weight and loss, in the order of the forwards
  int peak_live_ = 0;
};

void Pipeline::Impl::add_stage(int number, const std::vector<model::Layer>& layers,
                               const PipelineOptions& options) {
  const StageLayers& stage = stages_[static_cast<std::size_t>(number)];
  mine_.try_emplace(number, std::vector(layers.begin() + stage.first, layers.begin() + stage.last),
                    StageOptions{.recompute = options.recompute, .wants_input_gradient = number > 0});
  int& count = num_weight_gradients_[number];
  for (const Action& action : program().ranks[static_cast<std::size_t>(group_.rank())])
    count += action.stage == number && finishes_weight_gradient(action) ? 1 : 0;
}

/// In the order of the stages, on all ranks.
void Pipeline::Impl::replicate(const comm::Group& data, DataParallelOptions options) {
  options.end = ReductionEnd::kOnRequest;
  options.convolution_rule = false;  // followed already, if at all
  for (const auto& [number, stage] : mine_) {
    for (const model::Layer& layer : stage.layers()) {
      for (const auto& module : layer.modules) refuse_sparse_embeddings(*module, layer.name);
    }
    Replica replica;
    add_tensors_of(stage, replica);
    if (learns(replica)) replicas_.try_emplace(number, data, std::move(replica), options);
  }
}

ActionHandlers Pipeline::Impl::handlers() {
  const auto nothing = [](const Action&) {};
  // What there are no samples for is not computed, and not sent.
  const auto unless_empty = [this](ActionHandlers::Handler handler) {
    return [this, handler = std::move(handler)](const Action& action) {
      if (!is_empty(action)) handler(action);
    };
  };
  // A receive is only begun here: the program says when its message can be under way, often long before a
  // computation needs it.
  const auto receive = [&](Arrivals& arrivals) {
    return unless_empty([this, &arrivals](const Action& a) { arrivals[place_of(a)] = transfers_.receive(); });
  };
  const auto send = [&](Tensors& tensors, int direction) {
    return unless_empty([this, &tensors, direction](const Action& a) {
      transfers_.send(take(tensors, place_of(a)), rank_of(a.stage + direction));
    });
  };
  return {.forward = unless_empty([this](const Action& a) { forward(a); }),
          .backward = [this](const Action& a) { weight_gradient(a, [&] { backward(a); }); },
          .backward_input = unless_empty([this](const Action& a) { backward(a); }),
          .backward_weight =
              [this](const Action& a) {
                weight_gradient(a, [&] { local(a.stage).backward_weight(a.microbatch); });
              },
          .send_forward = send(outputs_, +1),
          .receive_forward = receive(inputs_),
          .send_backward = send(input_gradients_, -1),
          .receive_backward = receive(output_gradients_),
          .recompute = unless_empty([this](const Action& a) { local(a.stage).recompute(a.microbatch); }),
          .unshard = nothing,
          .reshard = nothing,
          // The last weight gradient of the stage has begun it.
          .reduce_grad = nothing,
          .step =
              [this](const Action&) {
                if (--num_steps_left_ == 0) update();
              }};
}

void Pipeline::Impl::forward(const Action& action) {
  const int stage = action.stage, next = stage + 1;
  const at::Tensor input = stage == 0 ? microbatch(action).input : take(inputs_, place_of(action));
  const at::Tensor output = local(stage).forward(action.microbatch, input);
  int live = 0;
  for (const auto& [number, each] : mine_) live += each.num_live();
  peak_live_ = std::max(peak_live_, live);
  if (stage == last_stage()) {
    losses_.emplace_back(microbatch(action).weight, output);
    return;
  }
  check_output(action, output);
  if (is_local(next)) {
    inputs_[{next, action.microbatch}] = {.tensor = output};
  } else {
    outputs_[place_of(action)] = output;
  }
}

void Pipeline::Impl::backward(const Action& action) {
  const int stage = action.stage, before = stage - 1;
  const at::Tensor of_output = stage == last_stage()
                                   ? at::full({}, microbatch(action).weight * gradient_scale_, at::kFloat)
                                   : take(output_gradients_, place_of(action));
  const at::Tensor of_input = action.kind == ActionKind::kBackwardInput
                                  ? local(stage).backward_input(action.microbatch, of_output)
                                  : local(stage).backward(action.microbatch, of_output);
  if (stage == 0) return;
  if (!of_input.defined()) {
    throw InvalidArgument(text("the loss of micro-batch ", action.microbatch,
                               " does not depend on the input of stage ", stage,
                               ": the stages before it would learn nothing"));
  }
  if (is_local(before)) {
    output_gradients_[{before, action.microbatch}] = {.tensor = of_input};
  } else {
    input_gradients_[place_of(action)] = of_input;
  }
}

/// The last one of a step begins the reduction over the stage's replicas; those before add up locally.
void Pipeline::Impl::weight_gradient(const Action& action, const std::function<void()>& compute) {
  const bool is_last = --num_left_.at(action.stage) == 0;
  const auto replica = replicas_.find(action.stage);
  if (replica == replicas_.end()) {
    if (!is_empty(action)) compute();
  } else if (!is_last) {
    const auto no_reduction = replica->second.no_sync();
    if (!is_empty(action)) compute();
  } else if (is_empty(action)) {
    replica->second.reduce_without_backward();
  } else {
    compute();
  }
}

void Pipeline::Impl::update() {
  for (auto& [number, replica] : replicas_) replica.finish_reduction();
  tied_.add_gradients();
  if (update_) update_();
}

void Pipeline::Impl::check_output(const Action& action, const at::Tensor& output) {
  const auto& announced = shapes_.of(microbatch(action).input);
  const TensorSpec& expected = announced[static_cast<std::size_t>(action.stage)];
  const StageLayers& layers = stages_[static_cast<std::size_t>(action.stage)];
  require(spec_of(output) == expected, "stage ", action.stage, " (layers ", layers.first, " to ",
          layers.last - 1, ") returns ", to_text(spec_of(output)), " for micro-batch ", action.microbatch,
          ", its first forward for an input of this shape returned ", to_text(expected));
  require(output.is_floating_point(), "stage ", action.stage, " returns ", to_text(expected),
          ": only floating-point tensors have gradients to send back; cut the model elsewhere");
}

at::Tensor Pipeline::Impl::loss_of(const at::Tensor& output, int microbatch) {
  const at::Tensor loss = (*loss_)(output, (*batch_)[static_cast<std::size_t>(microbatch)].target);
  require(loss.numel() == 1, "the loss of a micro-batch has to be one number, found ",
          to_text(spec_of(loss)));
  return loss.reshape({});
}

std::vector<Transfers::Incoming> Pipeline::Impl::incoming() {
  std::vector<Transfers::Incoming> list;
  for (const Action& action : program().ranks[static_cast<std::size_t>(group_.rank())]) {
    if (!schedule::is_receive(action.kind) || is_empty(action)) continue;
    const bool forward = action.kind == ActionKind::kReceiveForward;
    const auto& outputs = shapes_.of(microbatch(action).input);
    const int source = forward ? action.stage - 1 : action.stage + 1;
    // A gradient has the shape of the output that it belongs to.
    const int of_output = forward ? source : action.stage;
    list.push_back({.source = rank_of(source), .spec = outputs[static_cast<std::size_t>(of_output)]});
  }
  return list;
}

void Pipeline::Impl::begin(const std::vector<MicroBatch>& batch, const Loss& loss,
                           const StepOptions& options) {
  require(static_cast<int>(batch.size()) == program().num_microbatches, "the program takes ",
          program().num_microbatches, " micro-batches a step, found ", batch.size());
  for (auto& [number, stage] : mine_) stage.clear();
  for (Arrivals* arrivals : {&inputs_, &output_gradients_}) arrivals->clear();
  for (Tensors* tensors : {&outputs_, &input_gradients_}) tensors->clear();
  losses_.clear();
  peak_live_ = 0;
  batch_ = &batch;
  loss_ = &loss;
  gradient_scale_ = options.gradient_scale;
  num_left_ = num_weight_gradients_;
  num_steps_left_ = mine_.size();
  num_steps_ = options.number > 0 ? options.number : num_steps_ + 1;
}

double Pipeline::Impl::run(const std::vector<MicroBatch>& batch, const Loss& loss,
                           const StepOptions& options) {
  begin(batch, loss, options);
  // In the order of the micro-batches, on all ranks.
  for (const MicroBatch& each : batch) {
    if (each.input.size(0) > 0) shapes_.of(each.input);
  }
  tied_.set_aside();
  transfers_.begin(incoming());
  executor_.run(num_steps_);
  transfers_.finish();
  double sum = 0;
  for (const auto& [weight, each] : losses_) sum += weight * each.item<double>();
  return sum;
}

double Pipeline::Impl::step(const at::Tensor& input, const at::Tensor& target, const Loss& loss) {
  const int parts = program().num_microbatches;
  require(input.dim() >= 1 && input.size(0) >= parts, "a batch of ", input.dim() >= 1 ? input.size(0) : 0,
          " samples cannot be cut into ", parts, " micro-batches");
  require(!has(last_stage()) || (target.dim() >= 1 && target.size(0) == input.size(0)),
          "the rank with the last stage needs a target for each of the ", input.size(0), " samples");
  std::vector<MicroBatch> batch;
  for (int m = 0; m < parts; ++m) {
    MicroBatch part{.input = part_of(input, m, parts), .target = {}};
    if (has(last_stage())) part.target = part_of(target, m, parts);
    part.weight = static_cast<double>(part.input.size(0)) / static_cast<double>(input.size(0));
    batch.push_back(std::move(part));
  }
  at::Tensor sum = at::scalar_tensor(run(batch, loss, {}), at::kDouble).reshape({1});
  group_.all_reduce(sum);  // one rank adds something
  return sum.item<double>();
}

void Pipeline::Impl::zero_grad() {
  for (const auto& [number, stage] : mine_) {
    for (const model::Layer& layer : stage.layers()) {
      for (const auto& [name, parameter] : layer.parameters) parameter.mutable_grad().reset();
    }
  }
}

Replica Pipeline::Impl::replica() const {
  Replica replica;
  for (const auto& [number, stage] : mine_) add_tensors_of(stage, replica);
  return replica;
}

std::set<std::string> Pipeline::Impl::unsplit() const {
  std::set<std::string> all;
  for (const auto& [number, stage] : mine_) all.insert(stage.unsplit().begin(), stage.unsplit().end());
  return all;
}

double Pipeline::Impl::waited_s() const {
  double seconds = transfers_.waited_s();
  for (const auto& [number, replica] : replicas_) seconds += replica.statistics().waited_s;
  return seconds;
}

at::Tensor Pipeline::Impl::evaluate(const at::Tensor& input) {
  at::Tensor values = input;
  shapes_.of(input);
  for (int stage = 0; stage <= last_stage(); ++stage) {
    if (!is_local(stage)) continue;
    if (stage > 0 && !is_local(stage - 1)) {
      const TensorSpec& spec = shapes_.of(input)[static_cast<std::size_t>(stage) - 1];
      values = at::zeros(spec.sizes, at::TensorOptions(spec.type));
      group_.recv(values, rank_of(stage - 1));
    }
    values = local(stage).evaluate(values).contiguous();
    if (stage < last_stage() && !is_local(stage + 1)) group_.send(values, rank_of(stage + 1));
  }
  return has(last_stage()) ? values : at::Tensor();
}

Pipeline::Pipeline(comm::Context& context, const std::vector<model::Layer>& layers,
                   const PipelineOptions& options)
    : Pipeline(context, PipelineGroups{.pipeline = context.world()}, layers, options) {}

Pipeline::Pipeline(comm::Context& context, PipelineGroups groups, const std::vector<model::Layer>& layers,
                   const PipelineOptions& options) {
  const auto transport = groups.pipeline.backend_name() == "nccl" ? schedule::Transport::kRendezvous
                                                                  : schedule::Transport::kBuffered;
  schedule::Program program = pipeline_program(options, groups.pipeline.size(), transport);
  impl_ = std::make_unique<Impl>(context, std::move(groups), std::move(program), layers, options);
}

Pipeline::~Pipeline() = default;

double Pipeline::step(const at::Tensor& input, const at::Tensor& target, const Loss& loss) {
  return impl_->step(input, target, loss);
}

double Pipeline::accumulate(const std::vector<MicroBatch>& batch, const Loss& loss,
                            const StepOptions& options) {
  return impl_->run(batch, loss, options);
}

at::Tensor Pipeline::evaluate(const at::Tensor& input) { return impl_->evaluate(input); }

void Pipeline::zero_grad() { impl_->zero_grad(); }

optim::NamedTensors Pipeline::parameters() const { return impl_->replica().parameters; }
optim::NamedTensors Pipeline::buffers() const { return impl_->replica().buffers; }

const std::vector<Pipeline::StageLayers>& Pipeline::stages() const { return impl_->stages(); }
bool Pipeline::shares_parameters() const { return impl_->shares_parameters(); }
bool Pipeline::has_first_stage() const { return impl_->has(0); }
bool Pipeline::has_last_stage() const { return impl_->has(impl_->last_stage()); }
const schedule::Program& Pipeline::program() const { return impl_->program(); }
int Pipeline::peak_live_microbatches() const { return impl_->peak_live(); }
std::vector<std::string> Pipeline::unsplit() const {
  const std::set<std::string> all = impl_->unsplit();
  return {all.begin(), all.end()};
}
double Pipeline::waited_s() const { return impl_->waited_s(); }

}  // namespace trireme::parallel
