// Keys that say where and over what ranks a run computes: parallel, ps, offload and comm.
#include "trireme/comm/all_reduce_setting.h"
#include "trireme/comm/pin.h"
#include "trireme/parallel/data/comm_hook.h"
#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/parallel/pipeline/pipeline_options.h"
#include "trireme/parallel/zero/shard_hook.h"
#include "trireme/train/config/internal/config_rows.h"

namespace trireme::train {
namespace {

std::vector<std::string> backend_choices() {
  std::vector<std::string> names = {"auto"};
  for (const comm::BackendInfo& info : comm::backend_infos()) names.push_back(info.name);
  return names;
}

}  // namespace

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
          "who adds gradients up and updates: each rank, or servers", {.names = mode_names}),
      key("parallel.data", &C::parallel, &ParallelOptions::data,
          "replicas of the model; 0: as many as there are ranks for", {.least = 0, .most = kMaxInt}),
      updates_stay(key("parallel.pipeline", &C::parallel, &ParallelOptions::pipeline,
                       "ranks over which the layers of each replica are cut", count)),
      key("parallel.tensor", &C::parallel, &ParallelOptions::tensor,
          "ranks over which each layer is cut: heads, features and vocabulary; for gpt, mlp, and models that "
          "have a tensor-parallel form",
          count),
      key("parallel.sequence", &C::parallel, &ParallelOptions::sequence,
          "parallel.tensor: between layers each rank has a part of each sequence; gpt"),
      key("parallel.context", &C::parallel, &ParallelOptions::context,
          "ranks over which each sequence is cut, with attention in a ring; for gpt, and models whose form "
          "can",
          count),
      key("parallel.expert", &C::parallel, &ParallelOptions::expert,
          "replicas in a group that shares out the experts of each layer, for models of one's own that have "
          "experts; it divides the number of replicas",
          count),
      updates_stay(
          key("parallel.schedule", &C::parallel, &ParallelOptions::schedule,
              "order of work in a pipeline: a name that `trireme schedule` knows, or a file NAME.csv")),
      key("parallel.chunks", &C::parallel, &ParallelOptions::chunks,
          "stages per rank, for schedules that can have several; 0: the schedule's own number; without a "
          "pipeline, stages into which each rank's model is cut",
          {.least = 0, .most = kMaxInt}),
      key("parallel.microbatches", &C::parallel, &ParallelOptions::microbatches,
          "micro-batches of a pipeline, train.accumulation times per step; 0: four times its ranks, or what "
          "an "
          "asynchronous schedule needs",
          {.least = 0, .most = kMaxInt}),
      key("parallel.partition", &C::parallel, &ParallelOptions::partition,
          "where layers are cut: stages alike in time, in parameters, or in layers",
          {.names = partition_names}),
      key("parallel.cuts", &C::parallel, &ParallelOptions::cuts,
          "first layer of each stage of a pipeline but the first, in the place of parallel.partition: [5, 9]",
          one_up),
      key("parallel.planned_step_s", &C::parallel, &ParallelOptions::planned_step_s,
          "seconds that a step takes by trireme plan, told beside what it took; 0: there is no plan",
          {.least = 0}),
      key("parallel.vertical_sync", &C::parallel, &ParallelOptions::vertical_sync,
          "pipedream: a micro-batch sees the same version of the weights on all stages"),
      key("parallel.recompute", &C::parallel, &ParallelOptions::recompute,
          "a pipeline keeps the inputs of its stages and computes the rest again: less memory, more time"),
      key("parallel.zero", &C::parallel, &ParallelOptions::zero,
          "what replicas share out instead of each holding all: 1 the optimizer's state, 2 and gradients, 3 "
          "and parameters; 0: nothing",
          {.least = 0, .most = 3}),
      key("parallel.working_copy", &C::parallel, &ParallelOptions::working_copy,
          "parallel.zero with bf16 or fp16: ranks compute with a copy of the weights in that format, and the "
          "f32 "
          "values lie in shards alone"),
      key("parallel.persistent_below", &C::parallel, &ParallelOptions::persistent_below,
          "parallel.zero = 3: parameters with fewer elements stay gathered between uses", zero_up),
      key("parallel.gathered_layers", &C::parallel, &ParallelOptions::gathered_layers,
          "parallel.zero = 3: layers, or stages, whose weights are gathered at a time, ahead of their use; "
          "0: each "
          "once per step, and there until its last use",
          {.least = 0, .most = kMaxInt}),
      key("parallel.keep_gradients", &C::parallel, &ParallelOptions::keep_gradients,
          "parallel.zero = 2, 3 with several micro-batches: their gradients add up whole on each rank and "
          "are "
          "reduced once per step"),
      key("parallel.shard_ranks", &C::parallel, &ParallelOptions::shard_ranks,
          "parallel.zero: replicas next to each other in groups of so many, each of which has all of the "
          "state; "
          "0: one group",
          {.least = 0, .most = kMaxInt}),
      key("parallel.bucket_mib", &C::parallel, &ParallelOptions::bucket_mib,
          "MiB of gradients that are reduced in one piece", {.most = 4096, .above = 0}),
      key("parallel.priority", &C::parallel, &ParallelOptions::priority,
          "which gradients replicas reduce first: as they become ready, or, \"forward\", those that the next "
          "forward needs first, each layer of which waits for its own alone; for several hosts",
          {.names = priority_names}),
      key("parallel.slice_kib", &C::parallel, &ParallelOptions::slice_kib,
          "parallel.priority = \"forward\": KiB of gradients that are reduced in one piece, and not "
          "overtaken; 0: what is found to be fastest in the first steps",
          {.least = 0, .most = 1 << 20}),
      key("parallel.compression", &C::parallel, &ParallelOptions::compression,
          "how gradients travel: in a number format, or compressed", {.names = parallel::comm_hook_names}),
      key("parallel.compression_fraction", &C::parallel, &ParallelOptions::compression_fraction,
          "parallel.compression = \"top-k\", \"dgc\": the share of each gradient that is sent",
          {.most = 0.5, .above = 0}),
      key("parallel.compression_warmup_steps", &C::parallel, &ParallelOptions::compression_warmup_steps,
          "the same: first steps, in which 1/4, 1/16, 1/64 and 1/256 of each gradient are sent; \"one-bit\": "
          "steps "
          "before it begins, 15 to 25 % of all",
          {.least = 0, .most = kMaxInt}),
      key("parallel.compression_rank", &C::parallel, &ParallelOptions::compression_rank,
          "parallel.compression = \"power-sgd\": columns of the factors", {.least = 1, .most = 1024}),
      key("parallel.compression_scope", &C::parallel, &ParallelOptions::compression_scope,
          "who compresses, from \"int8\" on, beside parallel.zero any: \"all\" ranks, or \"hosts\": ranks of "
          "a host add up as they "
          "are, and their sum is compressed; \"auto\": hosts where there are several, one of them with "
          "several ranks",
          {.names = parallel::compression_scope_names}),
      key("parallel.compression_clip_norm", &C::parallel, &ParallelOptions::compression_clip_norm,
          "parallel.compression = \"dgc\": the norm of all gradients together, of which N ranks hold their "
          "own "
          "to "
          "1/sqrt(N) each, before velocities take them; 0: none",
          {.least = 0}),
      key("parallel.weight_compression", &C::parallel, &ParallelOptions::weight_compression,
          "parallel.zero: how weights are gathered where ranks have no memory in common: rounded to a number "
          "format, or to 8 bits for each value; each rank's own part stays exact",
          {.names = parallel::shard_weight_names}),
      key("parallel.activation_compression", &C::parallel, &ParallelOptions::activation_compression,
          "how activations travel between the stages of a pipeline, and their gradients back: f32 as bf16 or "
          "fp16, or 8 bits for each value",
          {.names = parallel::activation_format_names}),
      key("parallel.local_steps", &C::parallel, &ParallelOptions::local_steps,
          "steps that sites take by themselves between two outer steps, which average what they have learnt; "
          "1: replicas average gradients in every step",
          count),
      key("parallel.local_ranks", &C::parallel, &ParallelOptions::local_ranks,
          "parallel.local_steps: replicas next to each other that are a site, and average gradients in every "
          "step",
          count),
      key("parallel.local_from_step", &C::parallel, &ParallelOptions::local_from_step,
          "parallel.local_steps: first steps, in which all replicas average gradients", zero_up),
      stays(key("parallel.local_fragments", &C::parallel, &ParallelOptions::local_fragments,
                "parallel.local_steps: parts of the model, each of which goes to the other sites at another "
                "step of a round",
                count)),
      stays(key("parallel.local_delay", &C::parallel, &ParallelOptions::local_delay,
                "parallel.local_steps: steps that go on while a part travels, before its outer step",
                zero_up)),
      key("parallel.local_mixing", &C::parallel, &ParallelOptions::local_mixing,
          "parallel.local_delay: share of its own values that a site keeps when the outer ones come",
          {.least = 0, .most = 1}),
      stays(key("parallel.outer_optimizer", &C::parallel, &ParallelOptions::outer_optimizer,
                "parallel.local_steps: the mean of the sites, or a step of SGD with momentum or Nesterov's "
                "(DiLoCo) towards it",
                {.names = outer_optimizer_names})),
      key("parallel.outer_lr", &C::parallel, &ParallelOptions::outer_lr,
          "parallel.outer_optimizer = \"momentum\", \"nesterov\": its learning rate", {.above = 0}),
      key("parallel.outer_momentum", &C::parallel, &ParallelOptions::outer_momentum,
          "the same: how much of the last outer step goes on", {.below = 1, .above = 0}),
      key("parallel.unused_parameters", &C::parallel, &ParallelOptions::unused_parameters,
          "parameters that a step does not reach: an error, found in every step, or in the first one",
          {.names = parallel::unused_parameters_names}),
      key("parallel.check_replicas_every", &C::parallel, &ParallelOptions::check_replicas_every,
          "steps between comparisons of the parameters that ranks hold alike, besides the one in the last "
          "step; a difference ends the run; 0: never",
          zero_up),
      key("ps.coordinator", &C::served, &Served::coordinator,
          "parallel.mode = \"ps\": address of the coordinator; empty: the one of --servers"),
      key("ps.delay_compensation", &C::served, &Served::delay_compensation,
          "ps.staleness other than 0: how much a gradient is corrected for what others changed since it was "
          "begun (lambda of DC-ASGD); 0: not",
          {.least = 0}),
      key("ps.staleness", &C::served, &Served::staleness,
          "parallel.mode = \"ps\": steps that ranks may be apart; 0: they go together, as with all-reduce; "
          "-1: "
          "no bound",
          {.least = -1, .most = 1000}),
      key("offload.optimizer", &C::offload, &Offload::optimizer,
          "where the optimizer's state lives: on the device, in the host's memory (of a device beside it), "
          "or in "
          "files; it passes part by part",
          {.names = optim::offload_place_names}),
      key("offload.parameters", &C::offload, &Offload::parameters,
          "parallel.zero = 3: where each rank's shards of the parameters live",
          {.names = optim::offload_place_names}),
      key("offload.activations", &C::offload, &Offload::activations,
          "where what layers save for their backward lives until then",
          {.names = optim::offload_place_names}),
      key("offload.folder", &C::offload, &Offload::folder,
          "folder of these files, best on a fast local disk; empty: the run's"),
      key("offload.part_mib", &C::offload, &Offload::part_mib,
          "MiB that are brought to memory at once, of which there are three; a larger tensor where it has to "
          "be "
          "brought whole",
          {.most = 65536, .above = 0}),
      key("comm.backend", &C::comm, &Comm::backend, "how ranks talk; auto: the fastest that works here",
          {.names = backend_choices}),
      key("comm.all_reduce", &C::comm, &Comm::all_reduce,
          "all-reduces between hosts; auto: the fastest for each size, as measured when a group is made",
          {.names = comm::all_reduce_names}),
      key("comm.network", &C::comm, &Comm::network,
          "what these go over between hosts: plain TCP, or whatever UCX finds there (RDMA, shared memory, "
          "TCP)",
          {.names = comm::network_names}),
      key("comm.timeout_s", &C::comm, &Comm::timeout_s,
          "seconds after which a rank that others wait for and that is gone, stuck or elsewhere ends the run",
          {.most = 86400, .above = 0}),
      key("comm.slow_timeout_s", &C::comm, &Comm::slow_timeout_s,
          "the same for a rank that is alive and gets on; comm.timeout_s where that is more",
          {.most = 604800, .above = 0}),
      key("comm.torch_threads", &C::comm, &Comm::torch_threads,
          "threads of one rank; 0: its share of the cores that it may run on", {.least = 0, .most = 4096}),
      key("comm.pin", &C::comm, &Comm::pin,
          "ranks of a machine stay on cores that they share out by sockets, NUMA nodes and caches: each on "
          "its "
          "own, or on all of its NUMA node",
          {.names = comm::pin_names}),
      key("cuda.visible_devices", &C::comm, &Comm::cuda, &Cuda::visible_devices,
          "which of each host's GPUs ranks see, in this order: \"0,2\"; empty: as CUDA_VISIBLE_DEVICES has "
          "it"),
      key("cuda.tf32", &C::comm, &Comm::cuda, &Cuda::tf32,
          "where f32 may be rounded to TF32; auto: as libtorch has it, in convolutions",
          {.names = comm::tf32_names}),
      key("cuda.benchmark", &C::comm, &Comm::cuda, &Cuda::benchmark,
          "cuDNN times its kernels for each new shape and takes the fastest"),
      key("cuda.deterministic", &C::comm, &Comm::cuda, &Cuda::deterministic,
          "cuDNN and cuBLAS give the same bits each time, by slower kernels where there are two"),
      key("cuda.expandable_segments", &C::comm, &Comm::cuda, &Cuda::expandable_segments,
          "the allocator maps memory as it grows, so that less of it is lost to gaps"),
      key("nccl.interfaces", &C::comm, &Comm::nccl, &Nccl::interfaces,
          "network interfaces by how their names begin, \"eth,ib\"; \"=eth0\" this one, \"^docker\" all "
          "others; empty: as NCCL_SOCKET_IFNAME has it"),
      key("nccl.adapters", &C::comm, &Comm::nccl, &Nccl::adapters,
          "the same of InfiniBand and RoCE adapters, a port behind a colon: \"mlx5_0:1\"; empty: as "
          "NCCL_IB_HCA has it"),
      key("nccl.infiniband", &C::comm, &Comm::nccl, &Nccl::infiniband,
          "false: hosts talk over TCP, though there are adapters"),
      key("nccl.ib_timeout", &C::comm, &Comm::nccl, &Nccl::ib_timeout,
          "InfiniBand waits 4.096 us * 2^N for an answer; 0: as long as NCCL does", {.least = 0, .most = 31}),
      key("nccl.gpu_direct", &C::comm, &Comm::nccl, &Nccl::gpu_direct,
          "adapters read a GPU's memory themselves (GPUDirect RDMA) over one PCIe switch, several, within a "
          "NUMA node, anywhere; loc: never",
          {.names = comm::gpu_direct_names}),
      key("nccl.debug", &C::comm, &Comm::nccl, &Nccl::debug, "what NCCL says of itself on standard output",
          {.names = comm::nccl_debug_names}),
  };
}

}  // namespace trireme::train
