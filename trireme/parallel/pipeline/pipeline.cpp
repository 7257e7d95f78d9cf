#include "trireme/parallel/pipeline/pipeline.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/model/convolution_rule.h"
#include "trireme/parallel/executor.h"
#include "trireme/parallel/pipeline/internal/cut.h"
#include "trireme/parallel/pipeline/internal/stage.h"
#include "trireme/parallel/pipeline/internal/tied_parameters.h"
#include "trireme/parallel/pipeline/internal/transfers.h"
#include "trireme/schedule/lowering.h"
#include "trireme/schedule/schedule_table.h"
#include "trireme/schedule/validate.h"
#include "trireme/telemetry/trace.h"

namespace trireme::parallel {
namespace {

using schedule::Action;
using schedule::ActionKind;

schedule::Program order_of(const PipelineOptions& options, int num_ranks) {
  if (options.program) return *options.program;
  require(options.num_microbatches >= 1, "a pipeline needs at least one micro-batch, not ",
          options.num_microbatches);
  return schedule::make_schedule(options.schedule, {.num_ranks = num_ranks,
                                                    .num_chunks = options.num_chunks,
                                                    .num_microbatches = options.num_microbatches});
}

/// The program with its transfers and updates, if it is one that this executor runs.
schedule::Program executable(const schedule::Program& order, const comm::Group& group) {
  require(static_cast<int>(order.ranks.size()) == group.size(), "schedule '", order.name, "' is for ",
          order.ranks.size(), " ranks, the group has ", group.size());
  require(order.update_every == 0 && order.versions == schedule::WeightVersions::kNewest, "schedule '",
          order.name, "' updates weights in the middle of its micro-batches; this executor runs those that ",
          "update at the end");
  const auto ranks = schedule::ranks_of_stages(order);
  for (std::size_t stage = 0; stage < ranks.size(); ++stage) {
    require(ranks[stage].size() == 1, "schedule '", order.name, "' holds stage ", stage, " on ",
            ranks[stage].size(), " ranks; this executor runs those that hold each stage on one");
  }
  const auto transport =
      group.backend_name() == "nccl" ? schedule::Transport::kRendezvous : schedule::Transport::kBuffered;
  const bool is_whole = schedule::form_of(order) == schedule::Form::kStep;
  schedule::Program program =
      is_whole ? without_idle(order) : schedule::lower(order, {.transport = transport});
  schedule::validate(program, {.transport = transport});
  return program;
}

std::vector<Pipeline::StageLayers> place(const schedule::Program& program,
                                         const std::vector<model::Layer>& layers,
                                         const PipelineOptions& options) {
  const int num_layers = static_cast<int>(layers.size());
  require(program.num_stages <= num_layers, "schedule '", program.name, "' has ", program.num_stages,
          " stages, the model only ", num_layers, " layers: use fewer ranks or chunks");
  std::vector<int> bounds =
      options.cuts.empty() ? cuts_by_parameters(layers, program.num_stages) : options.cuts;
  check_cuts(bounds, num_layers, program.num_stages);
  bounds.insert(bounds.begin(), 0);
  bounds.push_back(num_layers);
  const auto ranks = schedule::ranks_of_stages(program);
  std::vector<Pipeline::StageLayers> stages;
  for (std::size_t stage = 0; stage < ranks.size(); ++stage)
    stages.push_back({.first = bounds[stage], .last = bounds[stage + 1], .rank = ranks[stage][0]});
  return stages;
}

/// What all ranks have to agree on, a line for each part.
std::string description(const schedule::Program& program, const std::vector<model::Layer>& layers,
                        const std::vector<Pipeline::StageLayers>& stages, const PipelineOptions& options) {
  std::string lines = text("schedule ", program.name, ", ", program.num_microbatches, " micro-batches, ",
                           options.recompute ? "recompute" : "no recompute", "\n");
  for (const auto& stage : stages)
    lines += text("stage of layers ", stage.first, " to ", stage.last, " on rank ", stage.rank, "\n");
  for (const model::Layer& layer : layers) {
    lines += text("layer ", layer.name);
    for (const auto& [name, parameter] : layer.parameters)
      lines += text(" ", name, " ", to_text(spec_of(parameter)));
    lines += "\n";
  }
  return lines + schedule::to_csv(program);
}

void check_same(comm::Group& group, const std::string& mine) {
  const std::vector<std::string> all = group.all_gather_text(mine);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const std::vector<std::string> first = split(all[0], '\n'), other = split(all[rank], '\n');
    for (std::size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
      const std::string one = i < first.size() ? first[i] : "", two = i < other.size() ? other[i] : "";
      require(one == two, "ranks have different pipelines: rank 0 '", one, "', rank ", rank, " '", two, "'");
    }
  }
}

/// Part `index` of a batch; parts differ by at most one sample.
at::Tensor part_of(const at::Tensor& batch, int index, int num_parts) {
  const std::int64_t size = batch.size(0), least = size / num_parts, longer = size % num_parts;
  const auto begin_of = [&](std::int64_t i) { return i * least + std::min(i, longer); };
  return batch.slice(0, begin_of(index), begin_of(index + 1));
}

}  // namespace

class Pipeline::Impl {
 public:
  Impl(comm::Context& context, comm::Group group, const std::vector<model::Layer>& layers,
       schedule::Program executable, const PipelineOptions& options)
      : group_(std::move(group)),
        stages_(place(executable, layers, options)),
        tied_(group_, layers, stages_),
        transfers_(group_),
        executor_(std::move(executable), group_.rank(), handlers(), context.status(),
                  telemetry::main_of(context.trace())) {
    check_same(group_, description(program(), layers, stages_, options));
    if (options.convolution_rule) model::follow_convolution_rule();
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (stages_[i].rank != group_.rank()) continue;
      mine_.try_emplace(static_cast<int>(i),
                        std::vector(layers.begin() + stages_[i].first, layers.begin() + stages_[i].last),
                        options.recompute);
    }
    if (has(last_stage()))
      local(last_stage()).set_head([this](const at::Tensor& output, int m) { return loss_of(output, m); });
    tied_.make_equal();
  }

  double step(const at::Tensor& input, const at::Tensor& target, const Loss& loss);
  at::Tensor evaluate(const at::Tensor& input);

  const schedule::Program& program() const { return executor_.program(); }
  int last_stage() const { return static_cast<int>(stages_.size()) - 1; }
  bool has(int stage) const { return mine_.contains(stage); }
  const std::vector<StageLayers>& stages() const { return stages_; }
  const std::map<int, Stage>& mine() const { return mine_; }
  int peak_live() const { return peak_live_; }
  double waited_s() const { return transfers_.waited_s(); }

 private:
  /// A tensor of one micro-batch at one stage.
  using Place = std::pair<int, int>;
  using Tensors = std::map<Place, at::Tensor>;
  using Arrivals = std::map<Place, Arrival>;

  ActionHandlers handlers();
  Stage& local(int stage) { return mine_.at(stage); }
  int rank_of(int stage) const { return stages_[static_cast<std::size_t>(stage)].rank; }
  bool is_local(int stage) const { return rank_of(stage) == group_.rank(); }
  static Place place_of(const Action& action) { return {action.stage, action.microbatch}; }
  static at::Tensor take(Tensors& tensors, const Place& place) { return tensors.extract(place).mapped(); }
  at::Tensor take(Arrivals& arrivals, const Place& place) {
    return transfers_.wait(std::move(arrivals.extract(place).mapped()));
  }

  void forward(const Action& action);
  void backward(const Action& action);
  void check_output(int stage, int microbatch, const at::Tensor& output) const;
  at::Tensor loss_of(const at::Tensor& output, int microbatch);
  at::Tensor microbatch_of(const at::Tensor& batch, int microbatch) const {
    return part_of(batch, microbatch, program().num_microbatches);
  }
  double weight_of(int microbatch) const {
    return static_cast<double>(microbatch_of(*input_, microbatch).size(0)) /
           static_cast<double>(input_->size(0));
  }

  /// Output of every stage but the last for an input of this shape; asked of the stages once per shape.
  const std::vector<TensorSpec>& outputs_of(const at::Tensor& input);
  std::vector<TensorSpec> ask_stages(const at::Tensor& input);
  std::vector<Transfers::Incoming> incoming();
  double mean_loss();
  void clear();

  comm::Group group_;
  const std::vector<StageLayers> stages_;
  std::map<int, Stage> mine_;  ///< by the number of the stage
  TiedParameters tied_;
  Transfers transfers_;
  Executor executor_;
  std::map<std::vector<std::int64_t>, std::vector<TensorSpec>> known_outputs_;

  // Of the step under way:
  const at::Tensor* input_ = nullptr;
  const at::Tensor* target_ = nullptr;
  const Loss* loss_ = nullptr;
  Arrivals inputs_, output_gradients_;  ///< what a stage gets
  Tensors outputs_, input_gradients_;   ///< what it gives to another rank
  double loss_sum_ = 0;
  std::uint64_t num_steps_ = 0;
  int peak_live_ = 0;
};

ActionHandlers Pipeline::Impl::handlers() {
  const auto nothing = [](const Action&) {};
  // A receive is only begun here: the program says when its message can be under way, often long before a
  // computation needs it.
  const auto receive = [this](Arrivals& arrivals) {
    return [this, &arrivals](const Action& a) { arrivals[place_of(a)] = transfers_.receive(); };
  };
  // A module's backward makes the gradients of input and weights at once: I does it whole, W has nothing
  // left.
  return {.forward = [this](const Action& a) { forward(a); },
          .backward = [this](const Action& a) { backward(a); },
          .backward_input = [this](const Action& a) { backward(a); },
          .backward_weight = nothing,
          .send_forward =
              [this](const Action& a) { transfers_.send(take(outputs_, place_of(a)), rank_of(a.stage + 1)); },
          .receive_forward = receive(inputs_),
          .send_backward =
              [this](const Action& a) {
                transfers_.send(take(input_gradients_, place_of(a)), rank_of(a.stage - 1));
              },
          .receive_backward = receive(output_gradients_),
          .recompute = [this](const Action& a) { local(a.stage).recompute(a.microbatch); },
          .unshard = nothing,
          .reshard = nothing,
          // Gradients that ranks share are added behind the last action, and the caller has the optimizer.
          .reduce_grad = nothing,
          .step = nothing};
}

void Pipeline::Impl::forward(const Action& action) {
  const int stage = action.stage, next = stage + 1;
  const at::Tensor input =
      stage == 0 ? microbatch_of(*input_, action.microbatch) : take(inputs_, place_of(action));
  const at::Tensor output = local(stage).forward(action.microbatch, input);
  int live = 0;
  for (const auto& [number, each] : mine_) live += each.num_live();
  peak_live_ = std::max(peak_live_, live);
  if (stage == last_stage()) {
    loss_sum_ += output.item<double>() * weight_of(action.microbatch);
    return;
  }
  check_output(stage, action.microbatch, output);
  if (is_local(next)) {
    inputs_[{next, action.microbatch}] = {.tensor = output};
  } else {
    outputs_[place_of(action)] = output;
  }
}

void Pipeline::Impl::backward(const Action& action) {
  const int stage = action.stage, before = stage - 1;
  const at::Tensor of_output = stage == last_stage() ? at::full({}, weight_of(action.microbatch), at::kFloat)
                                                     : take(output_gradients_, place_of(action));
  const at::Tensor of_input = local(stage).backward(action.microbatch, of_output);
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

void Pipeline::Impl::check_output(int stage, int microbatch, const at::Tensor& output) const {
  const auto& announced = known_outputs_.at(microbatch_of(*input_, microbatch).sizes().vec());
  const TensorSpec& expected = announced[static_cast<std::size_t>(stage)];
  const StageLayers& layers = stages_[static_cast<std::size_t>(stage)];
  require(spec_of(output) == expected, "stage ", stage, " (layers ", layers.first, " to ", layers.last - 1,
          ") returns ", to_text(spec_of(output)), " for micro-batch ", microbatch,
          ", its first forward for an input of this shape returned ", to_text(expected));
  require(output.is_floating_point(), "stage ", stage, " returns ", to_text(expected),
          ": only floating-point tensors have gradients to send back; cut the model elsewhere");
}

at::Tensor Pipeline::Impl::loss_of(const at::Tensor& output, int microbatch) {
  const at::Tensor loss = (*loss_)(output, microbatch_of(*target_, microbatch));
  require(loss.numel() == 1, "the loss of a micro-batch has to be one number, found ",
          to_text(spec_of(loss)));
  return loss.reshape({});
}

const std::vector<TensorSpec>& Pipeline::Impl::outputs_of(const at::Tensor& input) {
  const std::vector<std::int64_t> shape = input.sizes().vec();
  if (const auto known = known_outputs_.find(shape); known != known_outputs_.end()) return known->second;
  return known_outputs_.emplace(shape, ask_stages(input)).first->second;
}

std::vector<TensorSpec> Pipeline::Impl::ask_stages(const at::Tensor& input) {
  std::vector<TensorSpec> outputs(stages_.size());
  for (int stage = 0; stage < last_stage(); ++stage) {
    const auto at = static_cast<std::size_t>(stage);
    if (is_local(stage)) {
      if (stage > 0 && !is_local(stage - 1)) outputs[at - 1] = receive_spec(group_, rank_of(stage - 1));
      const at::Tensor sample =
          stage == 0 ? input : at::zeros(outputs[at - 1].sizes, at::TensorOptions(outputs[at - 1].type));
      outputs[at] = spec_of(local(stage).evaluate(sample));
      if (!is_local(stage + 1)) send_spec(group_, outputs[at], rank_of(stage + 1));
    }
  }
  const auto before_last = static_cast<std::size_t>(last_stage()) - 1;
  if (last_stage() > 0 && has(last_stage()) && !is_local(last_stage() - 1))
    outputs[before_last] = receive_spec(group_, rank_of(last_stage() - 1));
  return outputs;
}

std::vector<Transfers::Incoming> Pipeline::Impl::incoming() {
  std::vector<Transfers::Incoming> list;
  for (const Action& action : program().ranks[static_cast<std::size_t>(group_.rank())]) {
    if (!schedule::is_receive(action.kind)) continue;
    const bool forward = action.kind == ActionKind::kReceiveForward;
    const auto& outputs = outputs_of(microbatch_of(*input_, action.microbatch));
    const int source = forward ? action.stage - 1 : action.stage + 1;
    // A gradient has the shape of the output that it belongs to.
    const int of_output = forward ? source : action.stage;
    list.push_back({.source = rank_of(source), .spec = outputs[static_cast<std::size_t>(of_output)]});
  }
  return list;
}

double Pipeline::Impl::mean_loss() {
  at::Tensor sum = at::scalar_tensor(loss_sum_, at::kDouble).reshape({1});
  group_.all_reduce(sum);  // one rank adds something
  return sum.item<double>();
}

void Pipeline::Impl::clear() {
  for (auto& [number, stage] : mine_) stage.clear();
  for (Arrivals* arrivals : {&inputs_, &output_gradients_}) arrivals->clear();
  for (Tensors* tensors : {&outputs_, &input_gradients_}) tensors->clear();
  loss_sum_ = 0;
  peak_live_ = 0;
}

double Pipeline::Impl::step(const at::Tensor& input, const at::Tensor& target, const Loss& loss) {
  require(input.dim() >= 1 && input.size(0) >= program().num_microbatches, "a batch of ",
          input.dim() >= 1 ? input.size(0) : 0, " samples cannot be cut into ", program().num_microbatches,
          " micro-batches");
  require(!has(last_stage()) || (target.dim() >= 1 && target.size(0) == input.size(0)),
          "the rank with the last stage needs a target for each of the ", input.size(0), " samples");
  clear();
  input_ = &input;
  target_ = &target;
  loss_ = &loss;
  // In the order of the micro-batches, on all ranks.
  for (int m = 0; m < program().num_microbatches; ++m) outputs_of(microbatch_of(input, m));
  tied_.set_aside();
  transfers_.begin(incoming());
  executor_.run(++num_steps_);
  transfers_.finish();
  tied_.add_gradients();
  return mean_loss();
}

at::Tensor Pipeline::Impl::evaluate(const at::Tensor& input) {
  at::Tensor values = input;
  outputs_of(input);
  for (int stage = 0; stage <= last_stage(); ++stage) {
    if (!is_local(stage)) continue;
    if (stage > 0 && !is_local(stage - 1)) {
      const TensorSpec& spec = outputs_of(input)[static_cast<std::size_t>(stage) - 1];
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
    : Pipeline(context, context.world(), layers, options) {}

Pipeline::Pipeline(comm::Context& context, comm::Group group, const std::vector<model::Layer>& layers,
                   const PipelineOptions& options) {
  schedule::Program program = executable(order_of(options, group.size()), group);
  impl_ = std::make_unique<Impl>(context, std::move(group), layers, std::move(program), options);
}

Pipeline::~Pipeline() = default;

double Pipeline::step(const at::Tensor& input, const at::Tensor& target, const Loss& loss) {
  return impl_->step(input, target, loss);
}

at::Tensor Pipeline::evaluate(const at::Tensor& input) { return impl_->evaluate(input); }

void Pipeline::zero_grad() {
  for (auto& [name, parameter] : parameters()) parameter.mutable_grad().reset();
}

optim::NamedTensors Pipeline::parameters() const {
  optim::NamedTensors all;
  for (const auto& [number, stage] : impl_->mine()) {
    for (const model::Layer& layer : stage.layers()) {
      for (const auto& [name, parameter] : layer.parameters) {
        const auto is_known = [&name = name](const auto& known) { return known.first == name; };
        if (std::none_of(all.begin(), all.end(), is_known)) all.emplace_back(name, parameter);
      }
    }
  }
  return all;
}

const std::vector<Pipeline::StageLayers>& Pipeline::stages() const { return impl_->stages(); }
bool Pipeline::has_first_stage() const { return impl_->has(0); }
bool Pipeline::has_last_stage() const { return impl_->has(impl_->last_stage()); }
const schedule::Program& Pipeline::program() const { return impl_->program(); }
int Pipeline::peak_live_microbatches() const { return impl_->peak_live(); }
double Pipeline::waited_s() const { return impl_->waited_s(); }

}  // namespace trireme::parallel
