#pragma once
// How a configuration lays its model on the ranks: how many replicas there are, over how many ranks each is
// cut, which program they run. A run without a pipeline is the program with one stage, the whole model.

#include <vector>

#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/model/model.h"
#include "trireme/parallel/pipeline/pipeline_options.h"
#include "trireme/train/run_config.h"

namespace trireme::train {

/// Replicas of the model on `world_size` ranks. Throws InvalidArgument when parallel.data and
/// parallel.pipeline do not make up the world.
int num_replicas(const RunConfig& config, int world_size);

/// Everything but `cuts` and `update`. Reads the program of parallel.schedule where that is a file. Throws
/// InvalidArgument, DataError.
parallel::PipelineOptions pipeline_options(const RunConfig& config);

/// Whether stages update while micro-batches are under way. Throws InvalidArgument: an unknown schedule.
bool is_asynchronous(const RunConfig& config);

/// Micro-batches of one replica in a step. Throws as pipeline_options() does.
int num_microbatches(const RunConfig& config);

/// Whether every stage finishes the backwards of its micro-batches in their order, so that its gradients add
/// up as on one rank. Throws as pipeline_options() does.
bool finishes_in_order(const RunConfig& config);

/// Throws InvalidArgument, with rank and action, when the ranks of a pipeline cannot run their program, or
/// not with the rest of the configuration. Not collective.
void check_program(const RunConfig& config);

/// Throws InvalidArgument when `model` cannot be cut, or has too few layers for the program. Not collective.
void check_layers(const RunConfig& config, model::Model& model);

/// Ranks of one pipeline are parallel.data apart: rank = stage * replicas + replica. Collective.
parallel::PipelineGroups make_pipeline_groups(const RunConfig& config, comm::Context& context);

/// What the stages are made of; one layer where nothing is cut. They compute in the precision of the
/// configuration and use the model, which has to outlive them. Throws InvalidArgument: a model that cannot be
/// cut.
std::vector<model::Layer> layers_for(const RunConfig& config, model::Model& model);

/// First layer of every stage but the first, as parallel.partition says; empty: the pipeline's own choice,
/// stages alike in parameters. For "time" (and "auto") rank 0 measures the layers on a micro-batch of the
/// data. Collective.
std::vector<int> cuts_for(const RunConfig& config, comm::Context& context,
                          const std::vector<model::Layer>& layers, const data::DataSource& data);

}  // namespace trireme::train
