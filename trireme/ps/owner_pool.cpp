#include "trireme/ps/internal/owner_pool.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

namespace trireme::ps {
/// One owner, its queue, and its thread if it has one.
class OwnerPool::Worker {
 public:
  Worker(OwnerPool& pool, const OwnerPoolOptions& options, ServerFacts& facts)
      : pool_(pool),
        options_(options),
        has_thread_(options.num_threads > 0),
        queue_(options.queue),
        owner_(facts, options.partition, [this](OwnerOutput output) { emit(std::move(output)); }) {}

  ~Worker() {
    if (!thread_.joinable()) return;
    queue_.push(std::make_unique<OwnerEvent>(StopEvent{}));
    thread_.join();
  }

  void start() {
    if (!has_thread_) return;
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "trireme-owner");
  }

  /// Adds an event; returns whether its queue still has room.
  bool give(std::unique_ptr<OwnerEvent> event) {
    if (has_thread_ && event->is_short() && !std::exchange(did_at_once_, true))
      return do_at_once(std::move(event));
    const bool has_room = queue_.push(std::move(event));
    if (!has_thread_) work_soon();
    return has_room;
  }
  bool asks_for_room() { return queue_.asks_for_room(); }
  std::uint64_t num_done_at_once() const { return num_done_at_once_; }

  /// One waiting tick is enough.
  void tick() {
    if (!tick_waits_.exchange(true)) give(std::make_unique<OwnerEvent>(TickEvent{}));
  }

  void ask_status(const std::shared_ptr<Gathered>& gathered) {
    give(std::make_unique<OwnerEvent>(CallEvent{[this, gathered](const PartitionOwner& owner) {
      HeldStatus held = owner.status();
      held.queued_items = queue_.num_items();
      held.queued_bytes = queue_.num_bytes();
      post([gathered, held = std::move(held)](OwnerPool&) {
        gathered->held += held;
        if (--gathered->num_missing == 0) gathered->done(gathered->held);
      });
    }}));
  }

  ReplicaReport report(PartitionId partition) {
    if (!thread_.joinable()) return owner_.report(partition);
    // A failed owner drops the call, which breaks the promise.
    auto promise = std::make_shared<std::promise<ReplicaReport>>();
    auto result = promise->get_future();
    queue_.push(std::make_unique<OwnerEvent>(
        CallEvent{[partition, promise = std::move(promise)](const PartitionOwner& owner) {
          promise->set_value(owner.report(partition));
        }}));
    return result.get();
  }

 private:
  /// Runs on the node's thread, unless the pool is destroyed before.
  void post(std::function<void(OwnerPool&)> work) {
    pool_.surroundings_->post([pool = std::weak_ptr(pool_.self_), work = std::move(work)] {
      if (const auto alive = pool.lock()) work(**alive);
    });
  }

  void emit(OwnerOutput output) {
    if (has_thread_)
      outputs_.push_back(std::move(output));
    else
      pool_.on_output_(std::move(output));
  }

  void run() {
    while (true) {
      std::unique_lock turn(turn_);
      if (has_failed_) break;
      const Batch batch = work_or_fail();
      if (batch.is_last) return;
      if (batch.items > 0 || has_failed_ || !queue_.begin_sleep()) continue;
      turn.unlock();
      queue_.sleep();
    }
    wait_for_stop();
  }

  /// Runs a short event on the node's thread while the owner's thread sleeps, which saves a wake-up. At most
  /// once per turn of the node. Messages that arrive together are processed in batches by the owner's thread,
  /// without delaying other owners.
  bool do_at_once(std::unique_ptr<OwnerEvent> event) {
    post([this](OwnerPool&) { did_at_once_ = false; });
    const bool has_room = queue_.push_quietly(std::move(event));
    {
      const std::unique_lock turn(turn_, std::try_to_lock);
      if (turn.owns_lock() && !has_failed_ && queue_.num_items() == 1) {
        work_or_fail();
        ++num_done_at_once_;
      }
    }
    if (queue_.num_items() > 0) queue_.wake();
    return has_room;
  }

  /// A failed owner is in an unknown state: it processes nothing more, and drops its events.
  void wait_for_stop() {
    while (true) {
      const auto event = queue_.pop();
      if (!event)
        queue_.wait();
      else if (std::holds_alternative<StopEvent>(event->what))
        return;
    }
  }

  struct Batch {
    std::size_t items = 0;
    bool is_last = false;
  };
  Batch work_or_fail() {
    std::exception_ptr error;
    try {
      return work();
    } catch (...) {
      error = std::current_exception();
    }
    has_failed_ = true;
    post([error = std::move(error)](OwnerPool&) { std::rethrow_exception(error); });
    return {};
  }
  Batch work() {
    Batch batch;
    std::size_t bytes = 0;
    while (!batch.is_last && batch.items < options_.most_batch_items && bytes < options_.most_batch_bytes) {
      const auto event = queue_.pop();
      if (!event) break;
      ++batch.items;
      bytes += event->num_bytes();
      batch.is_last = std::holds_alternative<StopEvent>(event->what);
      if (std::holds_alternative<TickEvent>(event->what)) tick_waits_.store(false);
      owner_.take(*event);
    }
    owner_.go_on();
    if (!outputs_.empty()) {
      post([outputs =
                std::make_shared<std::vector<OwnerOutput>>(std::exchange(outputs_, {}))](OwnerPool& pool) {
        for (OwnerOutput& output : *outputs) pool.on_output_(std::move(output));
      });
    }
    if (queue_.makes_room()) post([this](OwnerPool& pool) { pool.resume_paused_by(*this); });
    return batch;
  }

  /// Without a thread: the surroundings run the work later. Events that come before are in the same batch.
  void work_soon() {
    if (std::exchange(is_due_, true)) return;
    post([this](OwnerPool&) {
      is_due_ = false;
      work();
      if (queue_.num_items() > 0) work_soon();
    });
  }

  OwnerPool& pool_;
  const OwnerPoolOptions options_;
  const bool has_thread_;
  MpscQueue<OwnerEvent> queue_;
  PartitionOwner owner_;
  std::vector<OwnerOutput> outputs_;  ///< of the current batch
  bool is_due_ = false;               ///< without a thread: work is posted
  std::atomic<bool> tick_waits_{false};
  std::mutex turn_;  ///< held by the working thread: the owner's, or the node's while the owner's sleeps
  bool has_failed_ = false;  ///< changed under `turn_`
  // Used only by the node's thread.
  bool did_at_once_ = false;  ///< in the current turn of the node
  std::uint64_t num_done_at_once_ = 0;
  std::thread thread_;
};

OwnerPool::OwnerPool(const OwnerPoolOptions& options, ServerFacts& facts,
                     std::function<void(OwnerOutput)> on_output)
    : on_output_(std::move(on_output)), self_(std::make_shared<OwnerPool*>(this)) {
  for (int i = 0; i < std::max(1, options.num_threads); ++i)
    workers_.push_back(std::make_unique<Worker>(*this, options, facts));
}

OwnerPool::~OwnerPool() { workers_.clear(); }

void OwnerPool::start(wire::Surroundings& surroundings) {
  surroundings_ = &surroundings;
  for (const auto& worker : workers_) worker->start();
}

void OwnerPool::give(PartitionId partition, std::unique_ptr<OwnerEvent> event) {
  give(of(partition), std::move(event));
}

void OwnerPool::give(const Ticks& ticks, wire::ConnectionId connection) {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Ticks part = {.life = ticks.life, .registered_at = ticks.registered_at, .ticks = {}};
    std::ranges::copy_if(ticks.ticks, std::back_inserter(part.ticks),
                         [&](const Ticks::Tick& tick) { return tick.partition % workers_.size() == i; });
    if (part.ticks.empty()) continue;
    auto event = std::make_unique<OwnerEvent>(std::move(part));
    event->connection = connection;
    give(*workers_[i], std::move(event));
  }
}

void OwnerPool::give(Worker& worker, std::unique_ptr<OwnerEvent> event) {
  const wire::ConnectionId connection = event->connection;
  if (worker.give(std::move(event)) || !paused_.try_emplace(connection, &worker).second) return;
  surroundings_->network().pause(connection);
  ++num_pauses_;
  if (worker.asks_for_room()) resume_paused_by(worker);
}

void OwnerPool::resume_paused_by(const Worker& worker) {
  for (auto paused = paused_.begin(); paused != paused_.end();) {
    if (paused->second != &worker) {
      ++paused;
      continue;
    }
    surroundings_->network().resume(paused->first);
    paused = paused_.erase(paused);
  }
}

void OwnerPool::notify_map(const MapEvent& map) {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    MapEvent part = {map.members, map.self, {}, map.has_lost_workers};
    std::ranges::copy_if(map.partitions, std::back_inserter(part.partitions),
                         [&](const auto& entry) { return entry.first % workers_.size() == i; });
    workers_[i]->give(std::make_unique<OwnerEvent>(std::move(part)));
  }
}

void OwnerPool::notify_connected(ServerId server) {
  for (const auto& worker : workers_) {
    auto event = std::make_unique<OwnerEvent>(ConnectedEvent{});
    event->server = server;
    worker->give(std::move(event));
  }
}

void OwnerPool::notify_closed(wire::ConnectionId connection, ServerId server) {
  paused_.erase(connection);
  for (const auto& worker : workers_) {
    auto event = std::make_unique<OwnerEvent>(ClosedEvent{});
    event->connection = connection;
    event->server = server;
    worker->give(std::move(event));
  }
}

void OwnerPool::tick() {
  for (const auto& worker : workers_) worker->tick();
}

void OwnerPool::ask_status(std::function<void(const HeldStatus&)> done) {
  auto gathered = std::make_shared<Gathered>();
  gathered->num_missing = workers_.size();
  gathered->done = std::move(done);
  for (const auto& worker : workers_) worker->ask_status(gathered);
}

std::uint64_t OwnerPool::num_done_at_once() const {
  std::uint64_t sum = 0;
  for (const auto& worker : workers_) sum += worker->num_done_at_once();
  return sum;
}

ReplicaReport OwnerPool::report(PartitionId partition) const { return of(partition).report(partition); }

}  // namespace trireme::ps
