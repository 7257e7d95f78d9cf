// Keys that place a run on ranks and devices: parallel, ps, offload and comm.
#include "trireme/comm/all_reduce_setting.h"
#include "trireme/comm/pin.h"
#include "trireme/parallel/data/comm_hook.h"
#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/parallel/pipeline/pipeline_options.h"
#include "trireme/parallel/zero/shard_hook.h"
#include "trireme/schedule/program.h"
#include "trireme/train/config/internal/config_rows.h"

namespace trireme::train {
namespace {

std::vector<std::string> backend_choices() {
  std::vector<std::string> names = {"auto"};
  for (const comm::BackendInfo& info : comm::backend_infos()) names.push_back(info.name);
  return names;
}

}  // namespace

std::vector<std::string> plan_names() { return {"none", "auto"}; }

std::vector<ConfigKey> parallel_key_table() {
  using C = RunConfig;
  using Comm = comm::ContextOptions;
  using Cuda = comm::CudaOptions;
  using Nccl = comm::NcclOptions;
  using Offload = optim::OffloadOptions;
  using Served = parallel::ServedOptions;
  const Allowed one_up{.least = 1}, zero_up{.least = 0};
  const Allowed count{.least = 1, .most = kMaxInt};
  return {
      key("parallel.mode", &C::parallel, &ParallelOptions::mode,
          "where gradients are reduced and weights updated: on the ranks (all-reduce), or on a parameter "
          "server (ps)",
          {.names = mode_names}),
      key("parallel.data", &C::parallel, &ParallelOptions::data,
          "data parallelism: replicas of the model; 0: as many as there are ranks for",
          {.least = 0, .most = kMaxInt}),
      updates_stay(key("parallel.pipeline", &C::parallel, &ParallelOptions::pipeline,
                       "pipeline parallelism: ranks over which the layers of each replica are split", count)),
      key("parallel.tensor", &C::parallel, &ParallelOptions::tensor,
          "tensor parallelism: ranks over which each layer is sharded: heads, features and vocabulary; for "
          "gpt, mlp, and models with a tensor-parallel form",
          count),
      key("parallel.sequence", &C::parallel, &ParallelOptions::sequence,
          "sequence parallelism with parallel.tensor: activations between layers are sharded along the "
          "sequence; gpt"),
      key("parallel.context", &C::parallel, &ParallelOptions::context,
          "context parallelism: ranks over which each sequence is sharded, with ring attention; for gpt, and "
          "models whose form supports it",
          count),
      key("parallel.expert", &C::parallel, &ParallelOptions::expert,
          "expert parallelism: replicas in a group that shards the experts of each layer, for custom models "
          "with experts; it divides the number of replicas",
          count),
      updates_stay(key("parallel.schedule", &C::parallel, &ParallelOptions::schedule,
                       "pipeline schedule: a name listed by `trireme schedule`, or a file NAME.csv")),
      key("parallel.chunks", &C::parallel, &ParallelOptions::chunks,
          "stages per rank (virtual stages), for schedules that support several; 0: the default of the "
          "schedule; without a pipeline, stages into which each rank's model is split",
          {.least = 0, .most = kMaxInt}),
      key("parallel.microbatches", &C::parallel, &ParallelOptions::microbatches,
          "micro-batches of a pipeline, train.accumulation times per step; 0: four times its ranks, or the "
          "number that an asynchronous schedule needs",
          {.least = 0, .most = kMaxInt}),
      key("parallel.stage_replicas", &C::parallel, &ParallelOptions::stage_replicas,
          "parallel.schedule = \"1f1b-rr\": ranks of each stage, which share its micro-batches: [2, 1]; []: "
          "two of the first stage, one of each other",
          {.least = 1, .most = schedule::kMostRanks}),
      key("parallel.partition", &C::parallel, &ParallelOptions::partition,
          "how layers are split into stages: equal time, equal parameters, or equal numbers of layers",
          {.names = partition_names}),
      key("parallel.cuts", &C::parallel, &ParallelOptions::cuts,
          "first layer of each stage of a pipeline except the first, instead of parallel.partition: [5, 9]",
          one_up),
      key("parallel.planned_step_s", &C::parallel, &ParallelOptions::planned_step_s,
          "seconds per step predicted by trireme plan, reported with the measured time; 0: no prediction",
          {.least = 0}),
      key("parallel.plan", &C::parallel, &ParallelOptions::plan,
          "auto: the run chooses the fastest mesh, schedule, micro-batches, ZeRO stage and activation "
          "checkpointing for its ranks at its start, within the memory of the host; keys of these that are "
          "not "
          "at their defaults stay; none: as configured",
          {.names = plan_names}),
      key("parallel.vertical_sync", &C::parallel, &ParallelOptions::vertical_sync,
          "pipedream: a micro-batch uses the same version of the weights on all stages"),
      key("parallel.recompute", &C::parallel, &ParallelOptions::recompute,
          "activation checkpointing of stages: a pipeline keeps the inputs of its stages and recomputes the "
          "rest: less memory, more time"),
      key("parallel.zero", &C::parallel, &ParallelOptions::zero,
          "ZeRO stage, state sharded over replicas: 1 optimizer state, 2 also gradients, 3 also parameters "
          "(FSDP); 0: none",
          {.least = 0, .most = 3}),
      key("parallel.working_copy", &C::parallel, &ParallelOptions::working_copy,
          "parallel.zero with bf16 or fp16: ranks compute with a low-precision copy of the weights, and the "
          "f32 values are in the shards only"),
      key("parallel.persistent_below", &C::parallel, &ParallelOptions::persistent_below,
          "parallel.zero = 3: parameters with fewer elements stay gathered between uses", zero_up),
      key("parallel.gathered_layers", &C::parallel, &ParallelOptions::gathered_layers,
          "parallel.zero = 3: layers, or stages, gathered at a time, including prefetched ones; 0: each once "
          "per step, kept until its last use (no resharding after forward)",
          {.least = 0, .most = kMaxInt}),
      key("parallel.keep_gradients", &C::parallel, &ParallelOptions::keep_gradients,
          "parallel.zero = 2, 3 with several micro-batches: gradients accumulate unsharded on each rank and "
          "are reduced once per step"),
      key("parallel.shard_ranks", &C::parallel, &ParallelOptions::shard_ranks,
          "parallel.zero: hybrid sharding (HSDP): size of the groups of consecutive replicas that each hold "
          "all of the state; 0: one group",
          {.least = 0, .most = kMaxInt}),
      key("parallel.bucket_mib", &C::parallel, &ParallelOptions::bucket_mib,
          "bucket size: MiB of gradients that are reduced together", {.most = 4096, .above = 0}),
      key("parallel.priority", &C::parallel, &ParallelOptions::priority,
          "order of gradient all-reduce: none: as gradients become ready; forward: layers that the next "
          "forward needs first, each of which waits only for its own; for several hosts",
          {.names = priority_names}),
      key("parallel.slice_kib", &C::parallel, &ParallelOptions::slice_kib,
          "parallel.priority = \"forward\": KiB of gradients that are reduced together without preemption; "
          "0: tuned in the first steps",
          {.least = 0, .most = 1 << 20}),
      key("parallel.compression", &C::parallel, &ParallelOptions::compression,
          "gradient compression: a number format, or a codec", {.names = parallel::comm_hook_names}),
      key("parallel.compression_fraction", &C::parallel, &ParallelOptions::compression_fraction,
          "parallel.compression = \"top-k\", \"dgc\": the fraction of each gradient that is sent",
          {.most = 0.5, .above = 0}),
      key("parallel.compression_warmup_steps", &C::parallel, &ParallelOptions::compression_warmup_steps,
          "\"dgc\": first steps, in which 1/4, 1/16, 1/64 and 1/256 of each gradient are sent; \"one-bit\": "
          "uncompressed first steps, 15 to 25 % of all",
          {.least = 0, .most = kMaxInt}),
      key("parallel.compression_rank", &C::parallel, &ParallelOptions::compression_rank,
          "parallel.compression = \"power-sgd\": rank of the approximation", {.least = 1, .most = 1024}),
      key("parallel.compression_scope", &C::parallel, &ParallelOptions::compression_scope,
          "where compression happens, from \"int8\" on, with parallel.zero any: \"all\": between all ranks; "
          "\"hosts\": between hosts, after an uncompressed sum within each; \"auto\": hosts if there are "
          "several and one of them has several ranks",
          {.names = parallel::compression_scope_names}),
      key("parallel.compression_clip_norm", &C::parallel, &ParallelOptions::compression_clip_norm,
          "parallel.compression = \"dgc\": clips each rank's gradients to 1/sqrt(N) of this norm, over N "
          "ranks, before they are added to the velocities; 0: none",
          {.least = 0}),
      key("parallel.weight_compression", &C::parallel, &ParallelOptions::weight_compression,
          "parallel.zero: compression of gathered weights between ranks without shared memory: a number "
          "format, or 8 bits for each value; each rank's own shard stays exact",
          {.names = parallel::shard_weight_names}),
      key("parallel.activation_compression", &C::parallel, &ParallelOptions::activation_compression,
          "compression of activations between the stages of a pipeline, and of their gradients: f32 as bf16 "
          "or fp16, or 8 bits for each value",
          {.names = parallel::activation_format_names}),
      key("parallel.local_steps", &C::parallel, &ParallelOptions::local_steps,
          "local SGD: local steps of each site between two outer steps, which average the sites; 1: replicas "
          "average gradients in every step",
          count),
      key("parallel.local_ranks", &C::parallel, &ParallelOptions::local_ranks,
          "parallel.local_steps: consecutive replicas that form a site, and average gradients in every step",
          count),
      key("parallel.local_from_step", &C::parallel, &ParallelOptions::local_from_step,
          "parallel.local_steps: number of first steps in which all replicas average gradients (post-local "
          "SGD)",
          zero_up),
      stays(key(
          "parallel.local_fragments", &C::parallel, &ParallelOptions::local_fragments,
          "parallel.local_steps: parts of the model, sent to the other sites at different steps of a round",
          count)),
      stays(key("parallel.local_delay", &C::parallel, &ParallelOptions::local_delay,
                "parallel.local_steps: steps that overlap the transfer of a part, before its outer step",
                zero_up)),
      key("parallel.local_mixing", &C::parallel, &ParallelOptions::local_mixing,
          "parallel.local_delay: weight of a site's own values when it receives the outer ones",
          {.least = 0, .most = 1}),
      stays(key("parallel.outer_optimizer", &C::parallel, &ParallelOptions::outer_optimizer,
                "parallel.local_steps: outer optimizer: the mean of the sites, or a step of SGD with "
                "momentum or Nesterov momentum (DiLoCo) towards it",
                {.names = outer_optimizer_names})),
      key("parallel.outer_lr", &C::parallel, &ParallelOptions::outer_lr,
          "parallel.outer_optimizer = \"momentum\", \"nesterov\": its learning rate", {.above = 0}),
      key("parallel.outer_momentum", &C::parallel, &ParallelOptions::outer_momentum,
          "the same: momentum of the outer steps", {.below = 1, .above = 0}),
      key("parallel.unused_parameters", &C::parallel, &ParallelOptions::unused_parameters,
          "parameters without a gradient in a step: an error, found in every step, or in the first one "
          "(static graph)",
          {.names = parallel::unused_parameters_names}),
      key("parallel.check_replicas_every", &C::parallel, &ParallelOptions::check_replicas_every,
          "steps between comparisons of replicated parameters, in addition to the one in the last step; a "
          "difference ends the run; 0: never",
          zero_up),
      key("ps.coordinator", &C::served, &Served::coordinator,
          "parallel.mode = \"ps\": address of the coordinator; empty: the one of --servers"),
      key("ps.delay_compensation", &C::served, &Served::delay_compensation,
          "ps.staleness other than 0: correction of stale gradients (lambda of DC-ASGD); 0: none",
          {.least = 0}),
      key("ps.staleness", &C::served, &Served::staleness,
          "parallel.mode = \"ps\": steps by which ranks may differ; 0: bulk-synchronous, as with all-reduce; "
          "-1: asynchronous",
          {.least = -1, .most = 1000}),
      key("offload.optimizer", &C::offload, &Offload::optimizer,
          "where optimizer state is stored: on the device, in host memory (CPU offload, for a device), or in "
          "files (NVMe offload)",
          {.names = optim::offload_place_names}),
      key("offload.parameters", &C::offload, &Offload::parameters,
          "parallel.zero = 3: where each rank's shards of the parameters are stored",
          {.names = optim::offload_place_names}),
      key("offload.activations", &C::offload, &Offload::activations,
          "where activations saved for the backward are stored", {.names = optim::offload_place_names}),
      key("offload.folder", &C::offload, &Offload::folder,
          "folder of these files, preferably on a fast local disk; empty: the run's"),
      key("offload.part_mib", &C::offload, &Offload::part_mib,
          "MiB of a part of offloaded state; three parts are in memory; a tensor that is needed whole may be "
          "larger",
          {.most = 65536, .above = 0}),
      key("comm.backend", &C::comm, &Comm::backend, "communication backend; auto: the fastest available one",
          {.names = backend_choices}),
      key("comm.all_reduce", &C::comm, &Comm::all_reduce,
          "all-reduce algorithm between hosts; auto: the fastest for each size, as measured when a group is "
          "created",
          {.names = comm::all_reduce_names}),
      key("comm.network", &C::comm, &Comm::network,
          "its transport between hosts: plain TCP, UCX (RDMA, shared memory, TCP), or auto: UCX if all hosts "
          "have RDMA adapters and it is measured as faster, else TCP",
          {.names = comm::network_names}),
      key("comm.timeout_s", &C::comm, &Comm::timeout_s,
          "timeout for a rank that others wait for and that is dead, stuck or in another operation, which "
          "ends the run",
          {.most = 86400, .above = 0}),
      key("comm.slow_timeout_s", &C::comm, &Comm::slow_timeout_s,
          "the same for a rank that is alive and makes progress; at least comm.timeout_s",
          {.most = 604800, .above = 0}),
      key("comm.torch_threads", &C::comm, &Comm::torch_threads,
          "threads of one rank; 0: its share of the usable cores", {.least = 0, .most = 4096}),
      key("comm.pin", &C::comm, &Comm::pin,
          "CPU pinning: ranks of a machine are bound to cores by sockets, NUMA nodes and caches: each to "
          "exclusive cores, or to all of its NUMA node",
          {.names = comm::pin_names}),
      key("cuda.visible_devices", &C::comm, &Comm::cuda, &Cuda::visible_devices,
          "GPUs of each host that ranks may use, in this order: \"0,2\"; empty: CUDA_VISIBLE_DEVICES"),
      key("cuda.tf32", &C::comm, &Comm::cuda, &Cuda::tf32,
          "where f32 may be rounded to TF32; auto: libtorch's default, in convolutions",
          {.names = comm::tf32_names}),
      key("cuda.benchmark", &C::comm, &Comm::cuda, &Cuda::benchmark,
          "cuDNN measures its kernels for each new shape and uses the fastest"),
      key("cuda.deterministic", &C::comm, &Comm::cuda, &Cuda::deterministic,
          "cuDNN and cuBLAS give the same bits each time, with slower kernels where necessary"),
      key("cuda.expandable_segments", &C::comm, &Comm::cuda, &Cuda::expandable_segments,
          "the allocator maps memory on demand, which reduces fragmentation"),
      key("nccl.interfaces", &C::comm, &Comm::nccl, &Nccl::interfaces,
          "network interfaces by prefix, \"eth,ib\"; \"=eth0\": this one, \"^docker\": all others; empty: "
          "NCCL_SOCKET_IFNAME"),
      key("nccl.adapters", &C::comm, &Comm::nccl, &Nccl::adapters,
          "the same for InfiniBand and RoCE adapters, a port after a colon: \"mlx5_0:1\"; empty: "
          "NCCL_IB_HCA"),
      key("nccl.infiniband", &C::comm, &Comm::nccl, &Nccl::infiniband,
          "false: hosts communicate over TCP, even with adapters"),
      key("nccl.ib_timeout", &C::comm, &Comm::nccl, &Nccl::ib_timeout,
          "InfiniBand waits 4.096 us * 2^N for a response; 0: NCCL's default", {.least = 0, .most = 31}),
      key("nccl.gpu_direct", &C::comm, &Comm::nccl, &Nccl::gpu_direct,
          "adapters access GPU memory directly (GPUDirect RDMA) over one PCIe switch, several, within a NUMA "
          "node, anywhere; loc: never",
          {.names = comm::gpu_direct_names}),
      key("nccl.debug", &C::comm, &Comm::nccl, &Nccl::debug, "NCCL's log level on standard output",
          {.names = comm::nccl_debug_names}),
  };
}

}  // namespace trireme::train
