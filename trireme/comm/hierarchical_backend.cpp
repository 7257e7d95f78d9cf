// Inside each host: shared memory. Between hosts: transfer lists for all-reduces, gloo for the rest.
// Collectives that gain from two levels run in order on a thread of the backend (HostCollectives).
// Point-to-point messages use the backend that reaches their peer. The rest runs over one gloo group of all
// ranks.

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/comm/internal/backend_table.h"
#include "trireme/comm/internal/gloo_dtypes.h"
#include "trireme/comm/internal/host_collectives.h"
#include "trireme/comm/internal/signalled_work.h"
#include "trireme/comm/shm/internal/shm_backend.h"

namespace trireme::comm {
namespace {

using Work = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

constexpr const char* kInner = "shm";
constexpr const char* kCross = "gloo";

/// Runs tasks in order on its own thread.
class Worker {
 public:
  Worker() : thread_([this] { run(); }) { pthread_setname_np(thread_.native_handle(), "trireme-hier"); }
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void add(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_all();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      // No deadline needed: it waits for work and not for a rank. The destructor ends it.
      changed_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = {};  // frees the captured objects before the next wait
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stop_ = false;
  std::thread thread_;
};

class HierarchicalBackend : public c10d::Backend {
 public:
  HierarchicalBackend(int rank, int size, HostLayout layout, HostLevels levels, double timeout_s)
      : Backend(rank, size),
        members_(layout.members),
        levels_(levels),
        hosts_(std::move(layout), std::move(levels), whole_milliseconds(timeout_s)) {}

  ~HierarchicalBackend() override = default;

  const std::string getBackendName() const override { return "hierarchical"; }

  void abort() override {
    pending_.abort("the operation was aborted");
    for (const auto& level : {levels_.inner, levels_.messages, levels_.cross, levels_.flat}) {
      if (level) level->abort();
    }
    if (levels_.cross_all_reduce) levels_.cross_all_reduce->abort();
  }

  bool supportsTensorAlloc(c10::DeviceIndex index) override {
    return levels_.inner && levels_.inner->supportsTensorAlloc(index);
  }
  at::Tensor allocateTensor(long numel, at::TensorOptions options) override {
    return levels_.inner->allocateTensor(numel, options);
  }

  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    check_reducible(tensors.at(0));
    return run(c10d::OpType::ALLREDUCE, tensors,
               [this, tensor = tensors.at(0), op = options.reduceOp] { hosts_.all_reduce(tensor, op); });
  }

  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    check_gloo_dtype(tensors.at(0));  // shared memory supports every dtype that gloo does
    return run(c10d::OpType::BROADCAST, tensors,
               [this, tensor = tensors.at(0), root = static_cast<int>(options.rootRank)] {
                 hosts_.broadcast(tensor, root);
               });
  }

  Work barrier(const c10d::BarrierOptions&) override {
    return run(c10d::OpType::BARRIER, {}, [this] { hosts_.barrier(); });
  }

  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& options) override {
    check_reducible(output);
    return run(c10d::OpType::_REDUCE_SCATTER_BASE, {output},
               [this, output, input, op = options.reduceOp] { hosts_.reduce_scatter(output, input, op); });
  }

  Work _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    check_gloo_dtype(input);
    return run(c10d::OpType::_ALLGATHER_BASE, {output},
               [this, output, input] { hosts_.all_gather(output, input); });
  }

  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return levels_.flat->reduce(tensors, options);
  }
  Work gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    return levels_.flat->gather(outputs, inputs, options);
  }
  Work scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    return levels_.flat->scatter(outputs, inputs, options);
  }
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_parts,
                     std::vector<std::int64_t>& input_parts, const c10d::AllToAllOptions& options) override {
    return levels_.flat->alltoall_base(output, input, output_parts, input_parts, options);
  }
  Work send(Tensors& tensors, int destination, int tag) override {
    const auto [messages, place] = way_to(destination);
    return messages->send(tensors, place, tag);
  }
  Work recv(Tensors& tensors, int source, int tag) override {
    const auto [messages, place] = way_to(source);
    return messages->recv(tensors, place, tag);
  }

 private:
  std::pair<BackendHandle, int> way_to(int peer) const {
    const auto found = std::find(members_.begin(), members_.end(), peer);
    if (found == members_.end()) return {levels_.flat, peer};
    return {levels_.messages, static_cast<int>(found - members_.begin())};
  }

  Work run(c10d::OpType type, const Tensors& tensors, std::function<void()> body) {
    auto work = c10::make_intrusive<SignalledWork>(getRank(), type, tensors);
    pending_.add(work);
    worker_.add([this, work, body = std::move(body)] {
      if (work->ended()) return;  // aborted meanwhile
      try {
        // Other ranks of this host may still be in the operation that failed here: a later one would match
        // it.
        if (failure_) std::rethrow_exception(failure_);
        body();
        work->signal(nullptr);
      } catch (...) {
        failure_ = std::current_exception();
        work->signal(failure_);
      }
    });
    return work;
  }

  const std::vector<int> members_;  ///< ranks of this host
  const HostLevels levels_;
  const HostCollectives hosts_;  ///< used only by the worker's thread
  PendingWorks pending_;
  std::exception_ptr failure_;  ///< of the first failed operation; used only by the worker's thread
  Worker worker_;               // last: its thread must end before the members that it uses
};

/// The same request for a subset of its ranks. None if this rank is not in it, or if it has fewer than two
/// ranks.
std::optional<BackendRequest> part_of(const BackendRequest& request, const std::string& name,
                                      const std::vector<int>& members) {
  const auto me = std::find(members.begin(), members.end(), request.rank);
  if (me == members.end() || members.size() < 2) return {};
  BackendRequest part = request;
  part.store = c10::make_intrusive<c10d::PrefixStore>(name, request.store);
  part.rank = static_cast<int>(me - members.begin());
  part.size = static_cast<int>(members.size());
  part.group_name = text(request.group_name, ".", name);
  part.world_ranks.clear();
  part.host_ids.clear();
  for (const int member : members) {
    part.world_ranks.push_back(request.world_ranks[static_cast<std::size_t>(member)]);
    part.host_ids.push_back(request.host_ids[static_cast<std::size_t>(member)]);
  }
  return part;
}

BackendHandle connect(const char* backend, const std::optional<BackendRequest>& part) {
  return part ? find_backend(backend).make(*part) : BackendHandle();
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_hierarchical_backend(const BackendRequest& request) {
  HostLayout layout = layout_of(request.host_ids, request.rank);
  const std::string host = std::to_string(layout.host);
  const auto counterparts = part_of(request, text("across", layout.place), layout.counterparts);
  HostLevels levels{.inner = connect(kInner, part_of(request, "host" + host, layout.members)),
                    .messages = connect(kInner, part_of(request, "messages" + host, layout.members)),
                    .cross = connect(kCross, counterparts),
                    .flat = connect(kCross, part_of(request, "flat", layout.everybody))};
  if (counterparts) levels.cross_all_reduce = CrossAllReduce::make(request, *counterparts, *levels.cross);
  return c10::make_intrusive<HierarchicalBackend>(request.rank, request.size, std::move(layout),
                                                  std::move(levels), request.operation_timeout_s);
}

}  // namespace trireme::comm
