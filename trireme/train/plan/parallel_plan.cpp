#include "trireme/train/plan/parallel_plan.h"

#include "trireme/base/mesh_axes.h"
#include "trireme/base/min_max_cuts.h"
#include "trireme/data/training_data.h"
#include "trireme/parallel/data/comm_hook.h"
#include "trireme/parallel/data/switched_hook.h"
#include "trireme/parallel/zero/shard_hook.h"
#include "trireme/schedule/schedule_table.h"
#include "trireme/train/parts/internal/compression.h"
#include "trireme/train/parts/internal/priority.h"
#include "trireme/train/plan/internal/axis_ranks.h"
#include "trireme/train/plan/internal/fixes.h"
#include "trireme/train/plan/internal/plan_maker.h"

namespace trireme::train {

bool updates_under_way(const RunConfig& config) {
  const std::string& name = config.parallel.schedule;
  return config.parallel.pipeline > 1 && !is_program_file(name) && schedule::find_schedule(name).asynchronous;
}

std::int64_t min_ranks(const RunConfig& config) {
  std::int64_t per_replica = 1;
  for (const AxisRow& row : mesh_axes()) {
    if (!row.shares(Shared::kSamples)) per_replica *= ranks_along(row, config);
  }
  const std::int64_t replicas = config.parallel.data;
  return replicas > 0 ? replicas * per_replica : ranks_of_other_axes(config);
}

data::Balance ParallelPlan::balance() const {
  if (config_.data.balance == "cost") return data::Balance::kCost;
  const bool may_change = config_.train.adapt && num_replicas() > 1;
  return config_.data.balance == "dynamic" || may_change ? data::Balance::kDynamic : data::Balance::kCount;
}

MeshShape ParallelPlan::mesh() const {
  const std::int64_t others = ranks_of_other_axes(config_);
  std::vector<MeshAxis> axes;
  for (const AxisRow& row : mesh_axes()) {
    const std::int64_t size = row.is_rest ? world_size_ / others : ranks_along(row, config_);
    if (row.is_always_there || size > 1) axes.push_back({row.name, static_cast<int>(size)});
  }
  return MeshShape(std::move(axes));
}

void ParallelPlan::check_tensor_parallel(const ModelShape& model) const {
  const std::int64_t ranks = tensor_ranks();
  if (ranks == 1) return;
  const std::string what = text("parallel.tensor = ", ranks, ": the model of type ", model.name);
  const Fixes fewer = other_ranks_along("parallel.tensor", config_, world_size_);
  reject_unless(model.tensor.has_value(), fewer, what,
                " has no tensor-parallel form: gpt and mlp have one, and a custom model that derives from "
                "parallel::TensorParallelizable");
  reject_unless(ranks <= model.tensor->max_ranks, fewer, what, " has ", model.tensor->of_what,
                ", and each rank needs at least one; use at most ", model.tensor->max_ranks);
  reject_unless(!config_.parallel.sequence || model.tensor->sequences,
                {set(&RunConfig::parallel, &ParallelOptions::sequence, false)},
                "parallel.sequence = true: the model of type ", model.name,
                " has no sequences that could be cut; leave that key out");
}

void ParallelPlan::check_context_form(const ModelShape& model) const {
  const std::int64_t ranks = context_ranks();
  if (ranks == 1) return;
  const std::string what = text("parallel.context = ", ranks, ": the model of type ", model.name);
  const Fixes fewer = other_ranks_along("parallel.context", config_, world_size_);
  const std::int64_t tokens = model.tensor ? model.tensor->tokens : 0;
  reject_unless(tokens > 0, fewer, what,
                " has no sequences that could be cut: gpt has, and a custom model whose form says so "
                "(parallel::TensorLimits::tokens)");
  reject_unless(
      2 * ranks <= tokens, fewer, what, " has sequences of ", tokens, tokens == 1 ? " token" : " tokens",
      ", and each rank needs an early and a late one; use at most ", std::max<std::int64_t>(1, tokens / 2));
}

void ParallelPlan::check_experts(const ModelShape& model) const {
  const std::int64_t ranks = expert_ranks();
  if (ranks == 1) return;
  const std::string what = text("parallel.expert = ", ranks, ": the model of type ", model.name);
  const Fixes fewer = other_ranks_along("parallel.expert", config_, world_size_);
  reject_unless(model.experts > 0, fewer, what,
                " has no experts to shard over replicas: a custom model has that derives from "
                "model::HasExperts; take parallel.expert = 1");
  reject_unless(
      model.experts % ranks == 0, fewer, what, " has ", model.experts,
      model.experts == 1 ? " expert" : " experts",
      ", which cannot be sharded evenly over so many ranks; possible: ", divisors_in_words(model.experts));
}

void ParallelPlan::cut(const ModelShape& model) {
  check_experts(model);
  check_tensor_parallel(model);
  check_context_form(model);
  if (!is_cut()) return;
  const int num_layers = static_cast<int>(model.parameters.size()), num_stages = program_.num_stages;
  Fixes fixes = other_pipelines(config_, world_size_);
  reject_unless(num_layers > 0, {fixes}, pipeline_in_words(config_), "the model of type ", model.name,
                " cannot be cut: it has no layers(); train it with parallel.pipeline = 1");
  const std::int64_t chunks = std::max(1, num_layers / pipeline_ranks());
  fixes.insert(fixes.begin(), {set(&RunConfig::parallel, &ParallelOptions::chunks, chunks),
                               set(&RunConfig::parallel, &ParallelOptions::chunks, 0)});
  reject_unless(num_stages <= num_layers, fixes, pipeline_in_words(config_), "schedule '", program_.name,
                "' has ", num_stages, " stages, the model only ", num_layers,
                " layers; lower parallel.pipeline or parallel.chunks");
  if (!config_.parallel.cuts.empty()) return take_named_cuts(num_layers);
  if (partition_ == Partition::kTime) return;
  const std::vector<double> alike(model.parameters.size(), 1);
  const std::vector<std::size_t> ends = min_max_cuts(
      partition_ == Partition::kLayers ? alike : model.parameters, static_cast<std::size_t>(num_stages));
  options_.cuts = {ends.begin(), ends.end() - 1};
}

bool ParallelPlan::stages_are_layers() const {
  return (config_.parallel.zero == 3 || exact()) && config_.parallel.pipeline == 1 &&
         config_.parallel.chunks == 0;
}

ParallelPlan ParallelPlan::for_model(const ModelShape& model) const {
  if (stages_are_layers()) return resolve_plan(config_, world_size_, model);
  ParallelPlan plan = *this;
  try {
    plan.cut(model);
  } catch (const PlanError& plan_error) {
    throw suggest_fix(config_, plan_error, world_size_,
                      [&](const RunConfig& changed) { make_plan(changed, world_size_, model); });
  }
  return plan;
}

ParallelPlan ParallelPlan::with_cuts(std::vector<int> cuts) const {
  ParallelPlan plan = *this;
  plan.config_.parallel.cuts.assign(cuts.begin(), cuts.end());
  plan.options_.cuts = std::move(cuts);
  return plan;
}

parallel::PipelineOptions ParallelPlan::pipeline_options() const {
  parallel::PipelineOptions options = options_;
  if (uses_parameter_server()) return options;
  const parallel::CompressionOptions compression = compression_options(config_);
  auto& hook = options.data_parallel.hook;
  if (is_sharded())
    hook = parallel::make_shard_hook(compression, config_.parallel.weight_compression);
  else if (config_.train.adapt && parallel::can_switch(compression))
    hook = std::make_shared<parallel::SwitchedHook>(compression);
  else
    hook = parallel::make_comm_hook(compression);
  if (uses_lazy_updates()) reduce_by_priority(config_, options.data_parallel);
  return options;
}

}  // namespace trireme::train
