#pragma once
// The engine of DistributedDataParallel: it has hooks on the parameters' gradients, fills buckets, starts
// their reductions in bucket order while backward runs, and waits for them at its end. (Li et al., arXiv
// 2006.15704, section 3.2.) It reduces .grad at the end of backward; an undefined one counts as zeros. Used
// from the thread that runs backward; gradients of CPU parameters arrive on that thread.

#include <torch/nn/module.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "trireme/parallel/data/distributed_data_parallel.h"
#include "trireme/parallel/data/internal/bucket.h"
#include "trireme/parallel/data/internal/gradient_buffer_allocator.h"
#include "trireme/parallel/data/internal/joins.h"
#include "trireme/parallel/data/internal/replicas.h"
#include "trireme/parallel/data/replica_check.h"
#include "trireme/telemetry/trace.h"

namespace trireme::parallel {

struct DistributedDataParallel::Reducer : std::enable_shared_from_this<Reducer> {
  Reducer(comm::Group group, Replica replica, const DataParallelOptions& options);

  /// Installs the hooks; they hold the reducer weakly, so that a model outlives its wrapper.
  void attach();
  /// Pending reductions fail the group: no one can finish them.
  void detach();

  /// Takes part in a pass of the others without one of its own (Join). Then calls `follow`, if there is one,
  /// with the reduced gradients in place; else leaves the gradients as they were.
  void join_reduction(const std::function<void()>& follow);
  /// Takes part in a pass of the others, and has its result in place like them.
  void join_and_keep();
  /// All ranks take over the parameters and buffers of rank `from`.
  void broadcast_state(int from);
  void start_reduction();
  void finish_reduction();
  void finish_reduction(const optim::NamedTensors& asked);
  /// Throws InvalidArgument where a parameter was added, removed, replaced, or changed in type, device or
  /// shape since the constructor. Local. One walk over the module.
  void check_module() const;
  /// Throws InvalidArgument where finish_reduction() has something left to do.
  void require_finished(const char* caller) const;
  void zero_grad();
  /// A pass is under way.
  bool is_running() const { return running_; }

  comm::Group group;
  Replica replica;
  std::shared_ptr<torch::nn::Module> module;  ///< of which the replica is; null: of none
  DataParallelOptions options;
  bool synchronise = true;            ///< false under no_sync
  bool is_checked = false;            ///< under no_sync: check_module() has been called
  bool compares = true;               ///< false in a Join whose ranks without a batch have older values
  int root = 0;                       ///< whose buffers and ready order count; Join: a rank that has a batch
  std::function<void()> before_pass;  ///< called when a synchronised pass begins; empty: nothing
  Statistics statistics;

 private:
  /// A parameter that a pass did not reach, and its gradient from before.
  struct Unreached {
    std::size_t number;
    at::Tensor before;
  };
  enum class Role { kOwn, kShadow };

  void collect_parameters();
  void on_gradient(std::size_t number);
  void take_gradient(std::size_t number);
  void adopt(std::size_t number);
  bool is_in_place(std::size_t number) const;
  at::Tensor place_of(std::size_t number) const;
  void make_room(std::size_t number);
  void reject_second_gradient(const Parameter& parameter);
  void reject_stale_sum(const Parameter& parameter) const;

  // A module that changes: reducer_follow.cpp.
  void require_same_parameters() const;
  bool requires_other_gradients() const;
  bool has_other_buffers() const;
  void follow_module();
  void set_learning(std::size_t number, bool learns);
  void hook_up(std::size_t number);
  void take_early_gradient(std::size_t number);

  void reject_outside_of_join() const;
  void announce_pass();
  void begin_pass();
  void watch_graph_task();
  void end_of_graph_task();
  void mark_ready(std::size_t number);
  void start_ready_buckets();

  void start_join();
  void complete_buckets(Role role);
  void finish_pass(Role role, const std::function<void()>& follow = nullptr);
  void fill_missing_gradient(std::size_t number);
  void recognise_view(Parameter& parameter) const;
  bool keeps_gradient(const Parameter& parameter) const;
  void fill_missing_gradients(Role role);
  /// The ranks' common information on a pass.
  struct Usage {
    /// For each parameter whether any rank has a gradient; all true where it is not needed.
    std::vector<bool> used;
    /// No rank was without a batch: the observed usage stays (kStatic).
    bool of_all_ranks = false;
  };
  Usage exchange_used(Role role);
  void wait_for(std::size_t bucket);
  void finish_buffers();
  void trace_bucket(std::size_t number) const;
  std::string unreached_of_all_ranks();
  void settle(const std::vector<bool>& used, Role role, bool follows);
  void note_reduced();
  void start_comparison();
  void forget_pass();

  // A pass that ends early: reducer_early_end.cpp.
  class GraphTaskEnd;
  void graph_task_over(int id, bool ended_well);
  void break_off(const std::string& why);
  [[noreturn]] void break_off_and_throw(const std::exception_ptr& error);

  bool learns_usage() const;
  void learn_usage(const std::vector<bool>& used);
  void rebuild_buckets();
  void lay_out_anew();
  void build_buffers();
  void build_buckets(const std::vector<std::size_t>& ready_order);

  const std::shared_ptr<JoinsUnderWay> joins_ = joins_of_this_thread();
  std::vector<Parameter> parameters_;
  std::unordered_map<const void*, std::size_t> numbers_;  ///< of parameters, by their implementation
  BucketMemory memory_;
  std::vector<Bucket> buckets_;
  /// Backward makes gradients in their buckets; null where there are none on the CPU.
  std::shared_ptr<GradientBufferAllocator> made_in_place_;
  std::vector<Coalesced> buffers_;
  std::vector<ParameterForm> forms_of_buffers_;
  std::optional<ReplicaCheck> replica_check_;  ///< since the first comparison
  at::Tensor used_flags_;
  telemetry::TraceBuffer* trace_ = nullptr;  ///< null when nothing is traced

  // The pass under way.
  bool running_ = false;
  bool announced_ = false;        ///< other ranks were notified of it and join it
  bool backward_over_ = false;    ///< its last gradient is there, or will not come
  std::optional<Role> started_;   ///< all that it reduces is on its way: finish_reduction() does the rest
  bool buffers_over_ = false;     ///< they have come
  bool comparing_ = false;        ///< a comparison of the parameters is on its way
  std::vector<int> graph_tasks_;  ///< those whose end is awaited: more than one when backward is nested
  std::string complaint_;         ///< the error that this reducer itself threw out of the pass
  std::size_t next_bucket_ = 0;   ///< the next one to start
  std::size_t num_unready_ = 0;   ///< gradients still to come
  std::vector<Unreached> unreached_;
  std::vector<std::size_t> ready_order_;  ///< observed in the first synchronised pass

  // kStatic, once the first pass has shown it.
  bool usage_known_ = false;
  std::vector<std::size_t> silent_;  ///< not used on this rank, but on another one
};

}  // namespace trireme::parallel
