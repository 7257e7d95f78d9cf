#include "trireme/train/machine/described_forms.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/train/config/precision.h"
#include "trireme/train/machine/gpt_costs.h"
#include "trireme/train/plan/internal/plan_maker.h"
#include "trireme/train/planner/internal/plan_space.h"

namespace trireme::train {
namespace {

/// Memory traffic of a parameter's update: weight, gradient and two moments, and the gradient's read by the
/// norm.
constexpr double kUpdateBytes = (2 + 1 + 4 + 1) * 4;
constexpr std::int64_t kMaxSamples = 64;  ///< of a micro-batch; larger ones are extrapolated

double peak_of(const Machine& machine, const std::string& precision) {
  const auto& peaks = machine.device.peak_flop_s;
  const auto found = peaks.find(precision);
  std::vector<std::string> known;
  for (const auto& [name, peak] : peaks) known.push_back(name);
  require(found != peaks.end(), "train.precision = \"", precision, "\": the machine '", machine.name,
          "' has peak_tflops for ", join(known), "; add ", precision,
          " to device.peak_tflops, or take one of these");
  return found->second;
}

void check_ranks(const Machine& machine, int world_size) {
  require(world_size <= machine.num_ranks(), "-n ", world_size, ": the machine '", machine.name, "' has ",
          machine.hosts, " hosts of ", machine.ranks_of_host, " ranks; take at most ", machine.num_ranks());
  require(world_size <= machine.ranks_of_host || world_size % machine.ranks_of_host == 0, "-n ", world_size,
          ": ranks fill whole hosts of ", machine.ranks_of_host, "; take a multiple of it");
}

GptOnMachine gpt_on(const RunConfig& config, const Machine& machine, std::int64_t vocabulary) {
  const model::ModelOptions& model = config.model;
  return {.model = {.layers = model.layers,
                    .heads = model.heads,
                    .width = model.width,
                    .block = config.data.block,
                    .vocabulary = vocabulary},
          .form = {},
          .flop_s = peak_of(machine, config.train.precision) * machine.device.product_share,
          .memory_bytes_per_s = machine.device.memory_bytes_per_s,
          .operand_bytes = precision_of(config.train.precision).autocast_to == at::kFloat ? 4 : 2,
          .links = machine.links};
}

Measurements form_on(const Machine& machine, const GptOnMachine& gpt, int world_size, std::int64_t most) {
  Measurements form{.processor = machine.device.name};
  for (std::int64_t samples = 1; samples <= most; samples *= 2) form.costs.push_back(gpt_use(gpt, samples));
  form.links = machine.links;
  form.exchanges.ranks = world_size;
  const bool is_one_host = world_size <= machine.ranks_of_host;
  const LinkFacts& slowest = is_one_host ? machine.links.within : machine.links.between;
  form.exchanges.send = {.fixed_s = slowest.latency_s, .unit_s = 1 / slowest.bytes_per_s};
  form.ranks_of_host = is_one_host ? 0 : machine.ranks_of_host;
  form.update = {.fixed_s = 0, .unit_s = kUpdateBytes / machine.device.memory_bytes_per_s};
  return form;
}

}  // namespace

RunConfig on_described_machine(const RunConfig& config) {
  RunConfig changed = config;
  changed.comm.device = "cpu";
  return changed;
}

MeasuredForms described_forms(const RunConfig& config, int world_size, const Machine& machine,
                              std::int64_t vocabulary) {
  require(config.model.name == "gpt", "model.name = \"", config.model.name,
          "\": the costs of a described machine follow from shapes, which are known of gpt; measure others "
          "(trireme plan without --machine)");
  require(config.model.width % config.model.heads == 0, "model.width = ", config.model.width,
          " is no multiple of model.heads = ", config.model.heads);
  require(vocabulary >= 1, "the vocabulary has ", vocabulary, " tokens; expected 1 or more (--vocabulary N)");
  check_ranks(machine, world_size);
  GptOnMachine gpt = gpt_on(config, machine, vocabulary);
  MeasuredForms forms;
  for (const ModelForm& each : model_forms(config, world_size)) {
    if (each.tensor > gpt.model.heads || 2 * each.context > std::max<std::int64_t>(gpt.model.block, 2))
      continue;
    gpt.form = each;
    const std::int64_t groups = world_size / (each.tensor * each.context);
    const std::int64_t most = std::clamp<std::int64_t>(config.train.global_batch, 1, kMaxSamples);
    if (groups < 1) continue;
    forms.push_back(form_on(machine, gpt, world_size, most));
    forms.back().model = model_key(make_plan(in_form(config, each, world_size), world_size, std::nullopt));
  }
  return forms;
}

}  // namespace trireme::train
