// Shared memory inside each host, gloo between hosts. All-reduce where every host has the same number of
// ranks: reduce-scatter inside the host, all-reduce of each part between the ranks of the same place on all
// hosts, all-gather inside: between two hosts every byte travels once each way instead of once per rank.
// Elsewhere the first rank of each host stands for it. What does not gain by this runs over one gloo group.

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/comm/internal/backend_table.h"
#include "trireme/comm/internal/gloo_dtypes.h"
#include "trireme/comm/internal/host_layout.h"
#include "trireme/comm/internal/signalled_work.h"
#include "trireme/comm/shm/internal/shm_backend.h"

namespace trireme::comm {
namespace {

using Work = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;
using BackendHandle = c10::intrusive_ptr<c10d::Backend>;

constexpr const char* kInner = "shm";
constexpr const char* kCross = "gloo";
// Below this the three steps of the parts cost more than the leader's way.
constexpr std::int64_t kLeastNumelForParts = 4096;

/// Runs what it is given in order on a thread of its own.
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
      // Needs no deadline: it waits for work, not for a rank; the destructor ends it.
      changed_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = {};  // what it holds goes before the next wait
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stop_ = false;
  std::thread thread_;
};

struct Levels {
  BackendHandle inner;     ///< the ranks of this host; empty when there is one
  BackendHandle messages;  ///< the same ranks, for send and recv, which come from another thread
  BackendHandle cross;     ///< this rank's counterparts on the other hosts; empty when it has none
  BackendHandle flat;      ///< all ranks
};

class HierarchicalBackend : public c10d::Backend {
 public:
  HierarchicalBackend(int rank, int size, HostLayout layout, Levels levels, double timeout_s)
      : Backend(rank, size),
        layout_(std::move(layout)),
        levels_(std::move(levels)),
        timeout_(whole_milliseconds(timeout_s)) {}

  ~HierarchicalBackend() override = default;

  const std::string getBackendName() const override { return "hierarchical"; }

  void abort() override {
    pending_.abort("the operation was aborted");
    for (const auto& level : {levels_.inner, levels_.messages, levels_.cross, levels_.flat}) {
      if (level) level->abort();
    }
  }

  bool supportsTensorAlloc(c10::DeviceIndex index) override {
    return levels_.inner && levels_.inner->supportsTensorAlloc(index);
  }
  at::Tensor allocateTensor(long numel, at::TensorOptions options) override {
    return levels_.inner->allocateTensor(numel, options);
  }

  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    check_reducible(tensors.at(0));
    return run(c10d::OpType::ALLREDUCE, tensors, [this, tensor = tensors.at(0), op = options.reduceOp] {
      const bool average = op == c10d::ReduceOp::AVG;
      reduce_everywhere(tensor.view({-1}), average ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op);
      if (average) at::Tensor(tensor).div_(getSize());
    });
  }

  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    check_gloo_dtype(tensors.at(0));  // all that it carries, shared memory does too
    return run(c10d::OpType::BROADCAST, tensors,
               [this, tensor = tensors.at(0), root = static_cast<int>(options.rootRank)] {
                 broadcast_everywhere(tensor, root);
               });
  }

  Work barrier(const c10d::BarrierOptions&) override {
    return run(c10d::OpType::BARRIER, {}, [this] {
      if (levels_.inner) finish(levels_.inner->barrier());
      if (leads() && levels_.cross) finish(levels_.cross->barrier());
      if (levels_.inner) finish(levels_.inner->barrier());
    });
  }

  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return levels_.flat->reduce(tensors, options);
  }
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& options) override {
    return levels_.flat->_reduce_scatter_base(output, input, options);
  }
  Work _allgather_base(at::Tensor& output, at::Tensor& input,
                       const c10d::AllgatherOptions& options) override {
    return levels_.flat->_allgather_base(output, input, options);
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
  bool leads() const { return layout_.place == 0; }

  std::pair<BackendHandle, int> way_to(int peer) const {
    const auto& local = layout_.members;
    const auto found = std::find(local.begin(), local.end(), peer);
    if (found == local.end()) return {levels_.flat, peer};
    return {levels_.messages, static_cast<int>(found - local.begin())};
  }

  Work run(c10d::OpType type, const Tensors& tensors, std::function<void()> body) {
    auto work = c10::make_intrusive<SignalledWork>(getRank(), type, tensors);
    pending_.add(work);
    worker_.add([this, work, body = std::move(body)] {
      if (work->ended()) return;  // aborted meanwhile
      try {
        // Other ranks of this host may still be in the operation that failed here: a later one would meet it.
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

  void finish(const Work& work) const { work->wait(timeout_); }

  void reduce_everywhere(const at::Tensor& flat, const c10d::ReduceOp& op) {
    const auto places = static_cast<std::int64_t>(layout_.members.size());
    const std::int64_t rest = layout_.even && places > 1 && flat.numel() >= kLeastNumelForParts
                                  ? flat.numel() % places
                                  : flat.numel();
    if (rest < flat.numel()) reduce_by_parts(flat.narrow(0, 0, flat.numel() - rest), op, places);
    if (rest > 0 || flat.numel() == 0) reduce_by_leaders(flat.narrow(0, flat.numel() - rest, rest), op);
  }

  void reduce_by_parts(at::Tensor whole, const c10d::ReduceOp& op, std::int64_t places) {
    const std::int64_t numel = whole.numel() / places;
    at::Tensor part = whole.narrow(0, layout_.place * numel, numel).clone();
    c10d::ReduceScatterOptions scatter_options;
    scatter_options.reduceOp = op;
    finish(levels_.inner->_reduce_scatter_base(part, whole, scatter_options));
    reduce_across(part, op);
    finish(levels_.inner->_allgather_base(whole, part));
  }

  void reduce_by_leaders(at::Tensor tensor, const c10d::ReduceOp& op) {
    Tensors tensors{tensor};
    c10d::ReduceOptions reduce_options;
    reduce_options.reduceOp = op;
    if (levels_.inner) finish(levels_.inner->reduce(tensors, reduce_options));
    if (leads()) reduce_across(tensor, op);
    if (levels_.inner) finish(levels_.inner->broadcast(tensors));
  }

  void reduce_across(const at::Tensor& tensor, const c10d::ReduceOp& op) {
    if (!levels_.cross) return;
    Tensors tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    finish(levels_.cross->allreduce(tensors, options));
  }

  void broadcast_everywhere(const at::Tensor& tensor, int root) {
    Tensors tensors{tensor};
    const int root_host = layout_.host_of[static_cast<std::size_t>(root)];
    const bool here = root_host == layout_.host;
    c10d::BroadcastOptions options;
    if (here && levels_.inner) {
      options.rootRank = layout_.place_of(root);
      finish(levels_.inner->broadcast(tensors, options));
    }
    if (leads() && levels_.cross) {
      options.rootRank = root_host;
      finish(levels_.cross->broadcast(tensors, options));
    }
    if (!here && levels_.inner) {
      options.rootRank = 0;
      finish(levels_.inner->broadcast(tensors, options));
    }
  }

  const HostLayout layout_;
  const Levels levels_;
  const std::chrono::milliseconds timeout_;
  PendingWorks pending_;
  std::exception_ptr failure_;  ///< the worker's: of the first operation that failed
  Worker worker_;               // last: its thread ends before what it uses goes
};

/// The same request for some of its ranks, which may be fewer than two: then there is nothing to connect.
BackendHandle connect(const BackendRequest& request, const char* backend, const std::string& name,
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
  return find_backend(backend).make(part);
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_hierarchical_backend(const BackendRequest& request) {
  HostLayout layout = layout_of(request.host_ids, request.rank);
  const std::string host = std::to_string(layout.host);
  Levels levels{.inner = connect(request, kInner, "host" + host, layout.members),
                .messages = connect(request, kInner, "messages" + host, layout.members),
                .cross = connect(request, kCross, text("across", layout.place), layout.counterparts),
                .flat = connect(request, kCross, "flat", layout.everybody)};
  return c10::make_intrusive<HierarchicalBackend>(request.rank, request.size, std::move(layout),
                                                  std::move(levels), request.operation_timeout_s);
}

}  // namespace trireme::comm
