#pragma once
// One include for a program with its own training loop, with one short name each: contexts and groups, DDP,
// FSDP, pipelines, optimizers and schedules, mixed precision, activation checkpointing, offload, checkpoints,
// data loading. RPC is in it, too, as trireme::rpc and trireme::remote. Everything else is included by
// module: tensor and context parallelism, the parameter server, and the command line (trireme/app/run_app.h).
//
// Compiling a source with it takes at most 1.12 times as long as with contexts and DDP alone (8.9 s of 8.0 s,
// g++ 12 -O1, Intel Xeon with AMX), and less than <torch/torch.h> (11.6 s).

#include "trireme/base/error.h"
#include "trireme/base/run_main.h"
#include "trireme/checkpoint/loop_checkpoints.h"
#include "trireme/checkpoint/whole_weights.h"
#include "trireme/comm/context.h"
#include "trireme/comm/elastic.h"
#include "trireme/comm/mesh.h"
#include "trireme/data/collate.h"
#include "trireme/data/dataset.h"
#include "trireme/data/producer.h"
#include "trireme/model/activation_store.h"
#include "trireme/model/checkpointed.h"
#include "trireme/model/deferred.h"
#include "trireme/model/model.h"
#include "trireme/optim/learning_rate.h"
#include "trireme/optim/loss_scaler.h"
#include "trireme/optim/moving_average.h"
#include "trireme/optim/offload.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/tensors_of.h"
#include "trireme/parallel/data/comm_hook.h"
#include "trireme/parallel/data/deferred_batch_norm.h"
#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/parallel/data/hook_state_copy.h"
#include "trireme/parallel/data/sync_batch_norm.h"
#include "trireme/parallel/graphed_step.h"
#include "trireme/parallel/pipeline/asynchronous_training.h"
#include "trireme/parallel/pipeline/pipe.h"
#include "trireme/parallel/pipeline/pipeline.h"
#include "trireme/parallel/zero/fully_shard.h"
#include "trireme/remote/init.h"
#include "trireme/remote/optimizer.h"
#include "trireme/remote/pipe.h"
#include "trireme/train/config/precision.h"
#include "trireme/train/run/sharded_loop.h"

namespace trireme {

// Ranks and communication
using comm::Context;
using comm::ContextOptions;
using comm::ElasticOptions;
using comm::Group;
using comm::Mesh;
using comm::next_world_is_asked;
using comm::Pending;
using comm::ReduceOp;
using comm::RowSplits;
using comm::run_elastic;
using comm::run_ranks_as_threads;
using comm::WorldChange;

// Data parallelism
using parallel::CommHook;
using parallel::CompressionOptions;
using parallel::DataParallelOptions;
using parallel::DistributedDataParallel;
using parallel::HookStateCopy;
using parallel::make_comm_hook;
using parallel::UnusedParameters;
using Join = DistributedDataParallel::Join;

// Sharded data parallelism
using parallel::fully_shard;
using parallel::FullyShardedDataParallel;
using parallel::FullyShardedOptions;
using parallel::ShardGroups;
using parallel::ZeroOptions;
using parallel::ZeroStage;

// Pipeline parallelism
using parallel::AsynchronousTraining;
using parallel::MicroBatch;
using parallel::Pipe;
using parallel::Pipeline;
using parallel::StepOutputs;
using parallel::PipelineOptions;

// Models and layers
using model::ActivationStore;
using model::checkpointed;
using model::CheckpointOptions;
using model::deferred;
using model::Layer;
using model::layers_of;
using model::make_layer;
using model::Model;

// Optimizers, schedules, mixed precision
using batch::DeviceNumbers;
using optim::clip_grad_norm;
using optim::ExponentialMovingAverage;
using optim::LearningRate;
using optim::LearningRateOptions;
using optim::LossScaler;
using optim::LossScalerOptions;
using optim::make_learning_rate;
using optim::make_optimizer;
using optim::NamedTensors;
using optim::Offload;
using optim::Optimizer;
using optim::OptimizerOptions;
using parallel::GraphedStep;
using train::Precision;
using train::precision_of;
using train::PrecisionScope;

// Checkpoints of a loop
using checkpoint::load_whole;
using checkpoint::LoopCheckpoints;
using checkpoint::LoopModel;
using checkpoint::LoopOptions;
using checkpoint::replicated_loop;
using checkpoint::save_whole;
using train::pipeline_loop;
using train::sharded_loop;

// Data
using data::BatchStream;
using data::collated;
using data::DataOptions;
using data::Dataset;
using data::DataSource;
using data::Example;
using data::open_data;
using data::padded;
using data::ProducedSamples;
using data::StepBatch;
using data::StreamOptions;

}  // namespace trireme
