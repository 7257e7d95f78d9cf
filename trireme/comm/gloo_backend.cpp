#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/comm/internal/arguments.h"
#include "trireme/comm/internal/backend_table.h"
#include "trireme/comm/internal/gloo_dtypes.h"
#include "trireme/comm/internal/gloo_parts.h"
#include "trireme/comm/internal/no_pipe_signal.h"
#include "trireme/comm/internal/peer_waiter.h"
#include "trireme/comm/internal/signalled_work.h"

// Limits of gloo: it ends the process when two ranks disagree about a size, and cannot be aborted. It
// emulates reduce_scatter by an all-reduce, and gathers into a copy of the output. It cannot report whether a
// send or receive has finished. The class below avoids these:
// - Gloo matches messages by tag. Each operation's tag holds its number and a hash of its description.
//   Different operations therefore never match: they stall, which the watcher detects and explains.
// - Callers wait on works of this class, which an abort ends at once.
// - Reduce-scatter and all-gather are messages between the tensors of the ranks (PartsWork), run by gloo's
//   threads in the order of the operations. They need kArrivingBytes of additional memory.
// - Gloo's writes raise SIGPIPE when the other rank is gone. The signal is blocked in gloo's threads and
//   during calls that write on their caller's thread.

namespace trireme::comm {
namespace {

using Work = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

class TaggedGloo : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  void set_tag(std::uint32_t tag) { collectiveCounter_ = tag; }

  Work all_gather(const PartsWork::Operation& operation) {
    return begin(c10::make_intrusive<AllGatherWork>(operation, contexts_.front(), ++seq_));
  }
  Work reduce_scatter(const PartsWork::Operation& operation, const c10d::ReduceOp& op) {
    return begin(c10::make_intrusive<ReduceScatterWork>(operation, op, contexts_.front(), ++seq_));
  }
  Work exchange(const PartsWork::Operation& operation, UnequalPartsWork::Sizes sizes) {
    return begin(
        c10::make_intrusive<UnequalPartsWork>(operation, std::move(sizes), contexts_.front(), ++seq_));
  }

  /// Gloo has no abort. But a wait that times out breaks all connections of the group, and with them all
  /// running operations. A receive without a sender does that. If a peer has left, its connection is broken
  /// already: the receive from it ends at once and breaks no other. Hence one receive from every rank.
  void break_connections() {
    const NoPipeSignal guard;
    std::vector<at::Tensor> nothing{at::empty({1}, at::kByte)};
    for (int rank = 0; rank < getSize(); ++rank) {
      if (rank == getRank()) continue;
      try {
        recv(nothing, rank, kTagOfNobody)->wait(std::chrono::milliseconds(1));
      } catch (const std::exception&) {
        // Broken now, or already before.
      }
    }
  }

 private:
  static constexpr int kTagOfNobody = 0x7fffffff;

  Work begin(c10::intrusive_ptr<AsyncWork> work) {
    enqueue(work);
    return work;
  }
};

std::uint32_t hash_of(std::initializer_list<std::int64_t> parts) {
  std::uint64_t hash = 0x9e3779b97f4a7c15u;
  for (const auto part : parts) {
    hash ^= static_cast<std::uint64_t>(part);
    hash *= 0xff51afd7ed558ccdu;
    hash ^= hash >> 33;
  }
  return static_cast<std::uint32_t>(hash);
}

class GlooBackend : public c10d::Backend {
 public:
  GlooBackend(c10::intrusive_ptr<TaggedGloo> gloo, std::chrono::milliseconds timeout)
      : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), timeout_(timeout) {
    while (peers_.size() < static_cast<std::size_t>(getSize())) peers_.emplace_back(timeout);
  }

  /// An operation that gloo's thread started during the abort may wait until it times out. Gloo's destructor
  /// waits for that thread. A detached thread runs the destructor, so that this rank waits a second at most.
  ~GlooBackend() override {
    if (!aborted_) return;
    auto done = std::make_shared<std::promise<void>>();
    const std::future<void> is_done = done->get_future();
    try {
      std::thread([gloo = std::move(gloo_), done]() mutable {
        gloo.reset();
        done->set_value();
      }).detach();
    } catch (const std::system_error&) {
      return;  // no thread available: the destructor has run here
    }
    is_done.wait_for(std::chrono::seconds(1));
  }

  const std::string getBackendName() const override { return "gloo"; }

  void abort() override {
    aborted_ = true;
    pending_.abort("the operation was aborted");
    gloo_->break_connections();
    for (auto& peer : peers_) {
      peer.sends.abort();
      peer.recvs.abort();
    }
  }

  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const at::Tensor& tensor = tensors.at(0);
    tag(c10d::OpType::ALLREDUCE, tensor, options.reduceOp, 0);
    auto summed = options;
    summed.reduceOp = without_average(options.reduceOp);
    return watch(gloo_->allreduce(tensors, summed), c10d::OpType::ALLREDUCE, tensors,
                 division(tensor, options.reduceOp));
  }

  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    const at::Tensor& tensor = tensors.at(0);
    tag(c10d::OpType::REDUCE, tensor, options.reduceOp, options.rootRank);
    auto summed = options;
    summed.reduceOp = without_average(options.reduceOp);
    return watch(
        gloo_->reduce(tensors, summed), c10d::OpType::REDUCE, tensors,
        getRank() == options.rootRank ? division(tensor, options.reduceOp) : [] {});
  }

  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& options) override {
    constexpr auto kType = c10d::OpType::REDUCE_SCATTER;  // short name for PartsWork
    const int with_tag = tag(kType, output, options.reduceOp, 0);
    return watch(gloo_->reduce_scatter(parts_of(kType, with_tag, output, input), options.reduceOp), kType,
                 {output});
  }

  Work _allgather_base(at::Tensor& output, at::Tensor& input,
                       const c10d::AllgatherOptions& /*options*/) override {
    constexpr auto kType = c10d::OpType::_ALLGATHER_BASE;
    const int with_tag = tag(kType, input, c10d::ReduceOp::SUM, 0);
    return watch(gloo_->all_gather(parts_of(kType, with_tag, output, input)), kType, {output});
  }

  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    tag(c10d::OpType::BROADCAST, tensors.at(0), c10d::ReduceOp::SUM, options.rootRank);
    return watch(gloo_->broadcast(tensors, options), c10d::OpType::BROADCAST, tensors);
  }

  Work gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    tag(c10d::OpType::GATHER, inputs.at(0), c10d::ReduceOp::SUM, options.rootRank);
    return watch(gloo_->gather(outputs, inputs, options), c10d::OpType::GATHER,
                 outputs.empty() ? Tensors{} : outputs[0]);
  }

  Work scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    tag(c10d::OpType::SCATTER, outputs.at(0), c10d::ReduceOp::SUM, options.rootRank);
    return watch(gloo_->scatter(outputs, inputs, options), c10d::OpType::SCATTER, outputs);
  }

  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_parts,
                     std::vector<std::int64_t>& input_parts, const c10d::AllToAllOptions& options) override {
    constexpr auto kType = c10d::OpType::ALLTOALL_BASE;
    if (input_parts.empty() && output_parts.empty()) {
      tag(kType, input, c10d::ReduceOp::SUM, 0);
      return watch(gloo_->alltoall_base(output, input, output_parts, input_parts, options), kType, {output});
    }
    // Ranks may have different numbers of elements in total, so the tag compares only the dtype.
    const int with_tag = tag(kType, input.flatten().narrow(0, 0, 0), c10d::ReduceOp::SUM, 0);
    const auto ranks = static_cast<std::size_t>(getSize());
    return watch(gloo_->exchange(parts_of(kType, with_tag, output, input),
                                 {.to = numels_of(input, input_parts, ranks),
                                  .from = numels_of(output, output_parts, ranks)}),
                 kType, {output});
  }

  Work barrier(const c10d::BarrierOptions& options) override {
    tag(c10d::OpType::BARRIER, {}, c10d::ReduceOp::SUM, 0);
    return watch(gloo_->barrier(options), c10d::OpType::BARRIER, {});
  }

  Work send(Tensors& tensors, int destination, int) override {
    check_gloo_dtype(tensors.at(0));
    const NoPipeSignal guard;
    Peer& peer = peers_.at(static_cast<std::size_t>(destination));
    const int with_tag = peer_tag(peer.num_sends++, tensors.at(0));
    return watch_peer(peer.sends, gloo_->send(tensors, destination, with_tag), c10d::OpType::SEND, {});
  }

  Work recv(Tensors& tensors, int source, int) override {
    check_gloo_dtype(tensors.at(0));
    const NoPipeSignal guard;
    Peer& peer = peers_.at(static_cast<std::size_t>(source));
    const int with_tag = peer_tag(peer.num_recvs++, tensors.at(0));
    return watch_peer(peer.recvs, gloo_->recv(tensors, source, with_tag), c10d::OpType::RECV, tensors);
  }

 private:
  struct Peer {
    explicit Peer(std::chrono::milliseconds timeout) : sends(timeout), recvs(timeout) {}
    PeerWaiter sends;
    PeerWaiter recvs;
    std::uint32_t num_sends = 0;
    std::uint32_t num_recvs = 0;
  };

  static c10d::ReduceOp without_average(const c10d::ReduceOp& op) {
    return op == c10d::ReduceOp::AVG ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op;
  }

  std::function<void()> division(const at::Tensor& tensor, const c10d::ReduceOp& op) const {
    if (op != c10d::ReduceOp::AVG) return [] {};
    return [tensor = tensor, size = getSize()]() mutable { tensor.div_(size); };
  }

  PartsWork::Operation parts_of(c10d::OpType type, int tag, const at::Tensor& output,
                                const at::Tensor& input) const {
    return {.gloo = *gloo_,
            .type = type,
            .tag = tag,
            .timeout = timeout_,
            .output = output.view({-1}),
            .input = input.view({-1})};
  }

  /// Throws InvalidArgument before the operation is counted. Returns the tag for an operation of single
  /// messages, different from every send and receive tag and from kTagOfNobody.
  int tag(c10d::OpType type, const at::Tensor& part, const c10d::ReduceOp& op, std::int64_t root) {
    if (part.defined()) check_gloo_dtype(part);
    const auto dtype = part.defined() ? part.scalar_type() : at::ScalarType::Undefined;
    const auto hash =
        hash_of({static_cast<int>(type), static_cast<int>(dtype), part.defined() ? part.numel() : 0,
                 static_cast<c10d::ReduceOp::RedOpType>(op), root});
    const std::uint32_t number = num_collectives_++;
    gloo_->set_tag((number << 24) | (hash & 0xffffff));
    return static_cast<int>(1U << 30 | (number & 0x3f) << 24 | (hash & 0x7fffff));
  }

  static int peer_tag(std::uint32_t number, const at::Tensor& tensor) {
    const auto hash = hash_of({static_cast<int>(tensor.scalar_type()), tensor.numel()});
    return static_cast<int>((number & 0x7f) << 23 | (hash & 0x7fffff));
  }

  /// `then` runs on gloo's thread when the data has arrived.
  Work watch(
      const Work& inner, c10d::OpType type, Tensors outputs, std::function<void()> then = [] {}) {
    auto outer = c10::make_intrusive<SignalledWork>(getRank(), type, std::move(outputs));
    pending_.add(outer);
    inner->getFuture()->addCallback([outer, then = std::move(then)](c10::ivalue::Future& future) {
      try {
        if (future.hasError()) std::rethrow_exception(future.exception_ptr());
        then();
        outer->signal(nullptr);
      } catch (...) {
        outer->signal(std::current_exception());
      }
    });
    return outer;
  }

  Work watch_peer(PeerWaiter& waiter, Work inner, c10d::OpType type, Tensors outputs) {
    auto outer = c10::make_intrusive<SignalledWork>(getRank(), type, std::move(outputs));
    pending_.add(outer);
    waiter.add(std::move(inner), outer);
    return outer;
  }

  c10::intrusive_ptr<TaggedGloo> gloo_;
  std::atomic<bool> aborted_ = false;
  const std::chrono::milliseconds timeout_;
  PendingWorks pending_;
  std::deque<Peer> peers_;
  std::uint32_t num_collectives_ = 0;
};

}  // namespace

void check_gloo_dtype(const at::Tensor& tensor) {
  constexpr at::ScalarType kCarried[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar,
                                         at::kByte,  at::kBool,   at::kInt,  at::kLong};
  require(std::find(std::begin(kCarried), std::end(kCarried), tensor.scalar_type()) != std::end(kCarried),
          "gloo does not carry tensors of ", at::toString(tensor.scalar_type()),
          " (f32, f64, f16, bf16, i8, u8, bool, i32 and i64 it does)");
}

namespace {

// gloo waits five times its timeout for a connection (Pair::waitUntilConnected).
constexpr double kGlooTimeouts = 5, kLeastGlooTimeout_s = 1;

/// The connection of the ranks of a group, and their keys in its store.
class Attempt {
 public:
  Attempt(const BackendRequest& request, int number)
      : request_(request),
        store_(c10::make_intrusive<c10d::PrefixStore>(text("attempt-", number), request.store)),
        deadline_(Deadline::after_s(request.timeout_s)) {
    connect();
    if (failure.empty()) return;
    gloo.reset();
    if (store_answers_) name_silent_ranks();
  }

  c10::intrusive_ptr<TaggedGloo> gloo = {};  ///< null: some rank is not connected
  std::string failure = {};                  ///< why
  bool can_retry = false;                    ///< all ranks know that some rank is not connected

 private:
  static constexpr const char* kHere = "here/";
  static constexpr const char* kConnected = "connected/";
  static constexpr const char *kYes = "yes", *kNo = "no";

  void connect() {
    try {
      put(kHere, kYes);
      store_->wait(keys(kHere), whole_milliseconds(deadline_.remaining_s()));
    } catch (const std::exception& error) {
      failure = error.what();
    }
    if (failure.empty()) connect_gloo();
    if (store_answers_) agree();
  }

  void connect_gloo() {
    const double timeout_s = std::max(kLeastGlooTimeout_s, request_.timeout_s / kGlooTimeouts);
    auto options = c10d::ProcessGroupGloo::Options::create(whole_milliseconds(timeout_s));
    options->threads = 2;
    options->group_name = request_.group_name;
    const NoPipeSignal guard;
    try {
      options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(request_.interface_addr)};
      gloo = c10::make_intrusive<TaggedGloo>(store_, request_.rank, request_.size, options);
    } catch (const c10::Error& error) {
      failure = error.what_without_backtrace();
    } catch (const std::exception& error) {
      failure = error.what();
    }
  }

  /// Each rank publishes its result. A rank that failed at once waits for those that detect the failure only
  /// by their timeout.
  void agree() {
    try {
      put(kConnected, gloo ? kYes : kNo);
      store_->wait(keys(kConnected), whole_milliseconds(deadline_.remaining_s() + request_.timeout_s / 2));
      for (int rank = 0; rank < request_.size; ++rank)
        can_retry = can_retry || store_->get_to_str(key(kConnected, rank)) != kYes;
      if (can_retry && failure.empty()) failure = "another rank could not connect";
    } catch (const std::exception&) {
      if (failure.empty()) failure = "not all ranks have connected";
    }
  }

  /// A store that has not answered by the deadline is not asked again: each call would wait as long.
  void put(const char* kind, const char* value) {
    try {
      store_->set(key(kind, request_.rank), std::string(value));
    } catch (const std::exception&) {
      store_answers_ = !deadline_.expired();
      throw;
    }
  }

  void name_silent_ranks() {
    for (const auto& [kind, words] :
         {std::pair(kHere, " did not come"), std::pair(kConnected, " did not connect")}) {
      const std::vector<std::string> silent = silent_ranks(kind);
      if (silent.empty()) continue;
      failure = text(silent.size() == 1 ? "rank " : "ranks ", join(silent), words, " (", failure, ")");
      return;
    }
  }

  /// Of the world: those that have no such key; empty too if the store does not answer.
  std::vector<std::string> silent_ranks(const char* kind) const {
    std::vector<std::string> silent;
    try {
      for (int rank = 0; rank < request_.size; ++rank) {
        if (!store_->check({key(kind, rank)}))
          silent.push_back(text(request_.world_ranks[static_cast<std::size_t>(rank)]));
      }
    } catch (const std::exception&) {
      return {};
    }
    return silent;
  }

  static std::string key(const char* kind, int rank) { return text(kind, rank); }
  std::vector<std::string> keys(const char* kind) const {
    std::vector<std::string> all;
    for (int rank = 0; rank < request_.size; ++rank) all.push_back(key(kind, rank));
    return all;
  }

  const BackendRequest& request_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const Deadline deadline_;
  bool store_answers_ = true;
};

}  // namespace

// On a busy host, gloo loses a new connection about once in some thousand groups. A retry with new sockets
// works. All ranks retry together, because each publishes its outcome.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendRequest& request) {
  constexpr int kMaxAttempts = 3;
  for (int number = 1;; ++number) {
    const Attempt attempt(request, number);
    if (attempt.gloo) {
      const auto timeout = whole_milliseconds(request.operation_timeout_s);
      attempt.gloo->setTimeout(timeout);
      return c10::make_intrusive<GlooBackend>(attempt.gloo, timeout);
    }
    if (attempt.can_retry && number < kMaxAttempts) continue;
    throw CommError(text("rank ", request.world_ranks[static_cast<std::size_t>(request.rank)],
                         " could not connect group '", request.group_name, "' with gloo at ",
                         request.interface_addr, " within ", human_duration(request.timeout_s), ": ",
                         attempt.failure));
  }
}

}  // namespace trireme::comm
