#include "trireme/parallel/pipeline/pipeline.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/foreign_error.h"
#include "trireme/parallel/pipeline/internal/engine.h"

namespace trireme::parallel {
namespace {

/// Part `index` of a batch; parts differ by at most one sample.
Fields part_of(const Fields& batch, int index, int num_parts) {
  const std::int64_t size = batch.rows(), least = size / num_parts, longer = size % num_parts;
  const auto begin_of = [&](std::int64_t i) { return i * least + std::min(i, longer); };
  return batch.map(
      [&](const at::Tensor& tensor) { return tensor.slice(0, begin_of(index), begin_of(index + 1)); });
}

/// The same fields, with the micro-batches concatenated.
Fields in_a_row(const std::vector<Fields>& parts) {
  Fields rows = parts.front();
  std::size_t place = 0;
  return rows.map([&](const at::Tensor& /*first*/) {
    std::vector<at::Tensor> column;
    for (const Fields& part : parts) column.push_back(part.at(place));
    ++place;
    return at::cat(column);
  });
}

bool has_rows(const Fields& batch, std::int64_t rows) {
  return std::ranges::all_of(batch, [&](const batch::Field& field) {
    return field.tensor.defined() && field.tensor.dim() >= 1 && field.tensor.size(0) == rows;
  });
}

}  // namespace

Pipeline::Pipeline(comm::Context& context, const std::vector<model::Layer>& layers,
                   const PipelineOptions& options)
    : Pipeline(context, PipelineGroups{.pipeline = context.world()}, layers, options) {}

Pipeline::Pipeline(comm::Context& context, PipelineGroups groups, const std::vector<model::Layer>& layers,
                   const PipelineOptions& options)
    : options_(options),
      transport_(groups.pipeline.transport(options.device) == comm::Transport::kRendezvous
                     ? schedule::Transport::kRendezvous
                     : schedule::Transport::kBuffered),
      num_ranks_(groups.pipeline.size()),
      group_(groups.pipeline) {
  engine_ = std::make_unique<Engine>(context, std::move(groups),
                                     pipeline_program(options, num_ranks_, transport_), layers, options);
}

Pipeline::~Pipeline() = default;

double Pipeline::step(const Fields& input, const Fields& target, const Loss& loss, StepOutputs* outputs) {
  require(!is_asynchronous(options_), "schedule '", program().name,
          "' never flushes: there is no step of its own; use start() and advance()");
  const int parts = program().num_microbatches;
  const std::int64_t samples = MicroBatch{.input = input, .target = target}.rows();
  require(samples >= parts, "a batch of ", samples, " samples cannot be cut into ", parts, " micro-batches");
  require(has_rows(input, samples),
          "the inputs of a batch have a row for each of its samples, and these are ", batch::to_text(input));
  require(!has_last_stage() || has_rows(target, samples),
          "the rank with the last stage needs a target for each of the ", samples, " samples");
  const auto next = [&](int m) {
    MicroBatch part{.input = part_of(input, m, parts), .target = {}};
    if (has_last_stage() || input.empty()) part.target = part_of(target, m, parts);
    part.weight = static_cast<double>(part.rows()) / static_cast<double>(samples);
    return part;
  };
  if (outputs != nullptr) *outputs = {};  // after an error they must not be those of an earlier step
  std::vector<Fields> of_parts;
  std::vector<at::Tensor> losses;
  const auto keep = [&](int m, const Fields& values, const at::Tensor& its_loss) {
    const auto place = static_cast<std::size_t>(m);
    of_parts.resize(static_cast<std::size_t>(parts));
    losses.resize(static_cast<std::size_t>(parts));
    of_parts[place] = values.map([](const at::Tensor& value) { return value.detach(); });
    losses[place] = its_loss.detach().reshape({});
  };
  const std::uint64_t number = num_steps_ + 1;
  const auto run = [&] {
    Stream stream{.next = next, .loss = loss};
    if (outputs != nullptr) stream.on_loss = keep;
    start(std::move(stream));
    return advance(++num_steps_);
  };
  const double mine = within([number] { return text("step ", number); }, run);
  at::Tensor sum = at::scalar_tensor(mine, at::kDouble).reshape({1});
  group_.all_reduce(sum);  // the sum over ranks with the last stage
  if (outputs != nullptr)
    *outputs = {.outputs = losses.empty() ? Fields() : in_a_row(of_parts), .losses = std::move(losses)};
  return sum.item<double>();
}

void Pipeline::start(Stream stream) {
  const bool flushes = !is_asynchronous(options_);
  require(drained(), "the pipeline is still under way: advance() until it is drained");
  require(
      !left_in_the_middle_, "an error has left the pipeline of schedule '", program().name,
      "' in the middle, where its stages have different versions of the weights: make a new one and resume "
      "from a checkpoint");
  require(stream.num_updates >= 1, "a stream has at least one update, not ", stream.num_updates);
  require(!flushes || stream.num_updates == 1, "schedule '", program().name,
          "' updates at the end of a step: a stream has 1 update, not ", stream.num_updates);
  num_updates_ = stream.num_updates;
  under_way_ = false;
  if (!flushes) engine_->set_program(pipeline_program(options_, num_ranks_, transport_, num_updates_));
  updates_of_round_ = engine_->num_updates() / num_updates_;
  engine_->begin(std::move(stream));
  under_way_ = true;
}

UnreadLoss Pipeline::advance_unread(std::uint64_t number) { return advance_updates(1, number); }

UnreadLoss Pipeline::advance_round_unread(std::uint64_t number) {
  return advance_updates(updates_of_round_, number);
}

UnreadLoss Pipeline::advance_updates(int num_updates, std::uint64_t number) {
  require(!drained(), "nothing is under way in the pipeline: start() comes first");
  try {
    for (int update = 0; update < num_updates; ++update) engine_->run_to_update(number);
  } catch (...) {
    under_way_ = false;
    left_in_the_middle_ = is_asynchronous(options_);
    throw;
  }
  return engine_->take_loss();
}

void Pipeline::finish_after(int num_updates) {
  if (num_updates >= num_updates_ || drained()) return;
  engine_->continue_with(pipeline_program(options_, num_ranks_, transport_, num_updates));
  num_updates_ = num_updates;
}

/// The first rank is ahead by as many micro-batches as there are ranks; receives are posted two ahead.
int Pipeline::asynchronous_margin() const { return 2 * num_ranks_ + 2; }

bool Pipeline::drained() const { return !under_way_ || engine_->at_end(); }
Pipeline::Staleness Pipeline::staleness() const { return engine_->staleness(); }

Fields Pipeline::evaluate(const Fields& input) {
  require(drained() && !left_in_the_middle_,
          "the pipeline is under way: its stages have different versions; drain it first");
  return engine_->evaluate(input);
}

void Pipeline::sit_out_evaluation() { engine_->sit_out_evaluation(); }

void Pipeline::finish_gradients(const optim::NamedTensors& parameters) {
  engine_->finish_gradients(parameters);
}

void Pipeline::zero_grad() { engine_->zero_grad(); }

optim::NamedTensors Pipeline::parameters() const { return engine_->replica().parameters; }
double Pipeline::clip_grad_norm(double max_norm) { return engine_->clip_grad_norm(max_norm); }
Pieces Pipeline::pieces() const { return engine_->pieces(); }
optim::NamedTensors Pipeline::weights() const { return engine_->weights(); }
void Pipeline::weights_changed() { engine_->weights_changed(); }
void Pipeline::free_other_stages() { engine_->free_other_stages(); }
optim::NamedTensors Pipeline::buffers() const { return engine_->replica().buffers; }

const std::vector<Pipeline::StageLayers>& Pipeline::stages() const { return engine_->stages(); }
bool Pipeline::shares_parameters() const { return engine_->shares_parameters(); }
bool Pipeline::has_first_stage() const { return engine_->has(0); }
bool Pipeline::has_last_stage() const { return engine_->has(engine_->last_stage()); }
const schedule::Program& Pipeline::program() const { return engine_->program(); }
int Pipeline::peak_live_microbatches() const { return engine_->peak_live(); }
std::vector<std::string> Pipeline::unsplit() const {
  const std::set<std::string> all = engine_->unsplit();
  return {all.begin(), all.end()};
}
double Pipeline::waited_s() const { return engine_->waited_s(); }
std::int64_t Pipeline::sent_bytes() const { return engine_->sent_bytes(); }

}  // namespace trireme::parallel
