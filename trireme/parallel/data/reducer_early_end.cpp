// A backward pass that ends before all its gradients are reduced. The reasons: an exception in a hook or in a
// recomputed part, an exception at the end, another pass in between, the destruction of the wrapper. Other
// ranks wait for operations that were issued before. They would match this rank's next operations with the
// rest of the pass. So the group fails, by name. If no operation was issued, the pass may be repeated.
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/parallel/data/internal/reducer.h"

namespace trireme::parallel {
namespace {

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an exception";
  }
}

/// Ignores exceptions.
void quietly(const std::function<void()>& action) {
  try {
    action();
  } catch (...) {
    // The group has failed: its cause is known.
  }
}

}  // namespace

/// A callback of a graph task: called if the task succeeds, destroyed with the task in any case. The caller
/// of backward gets an exception only after that.
class DistributedDataParallel::Reducer::GraphTaskEnd {
 public:
  GraphTaskEnd(std::weak_ptr<Reducer> reducer, int id) : reducer_(std::move(reducer)), id_(id) {}
  GraphTaskEnd(const GraphTaskEnd&) = delete;
  GraphTaskEnd& operator=(const GraphTaskEnd&) = delete;
  ~GraphTaskEnd() {
    quietly([this] {
      if (const auto reducer = reducer_.lock()) reducer->graph_task_over(id_, ended_well_);
    });
  }
  void operator()() {
    ended_well_ = true;
    if (const auto reducer = reducer_.lock()) reducer->end_of_graph_task();
  }

 private:
  const std::weak_ptr<Reducer> reducer_;
  const int id_;
  bool ended_well_ = false;
};

/// A backward pass may run others inside (activation checkpointing). Each has its own graph task, and the end
/// of each may be the end of the pass.
void DistributedDataParallel::Reducer::watch_graph_task() {
  const int id = torch::autograd::get_current_graph_task_id();
  if (std::ranges::find(graph_tasks_, id) != graph_tasks_.end()) return;
  graph_tasks_.push_back(id);
  const auto end = std::make_shared<GraphTaskEnd>(weak_from_this(), id);
  torch::autograd::Engine::get_default_engine().queue_callback([end] { (*end)(); });
}

void DistributedDataParallel::Reducer::graph_task_over(int id, bool ended_well) {
  std::erase(graph_tasks_, id);
  if (!running_ || backward_over_) return;
  // The pass continues in the enclosing task, even if that task has produced no gradient.
  if (torch::autograd::get_current_graph_task_id() >= 0) return watch_graph_task();
  if (!ended_well && graph_tasks_.empty())
    break_off(complaint_.empty() ? "an exception ended it" : complaint_);
}

void DistributedDataParallel::Reducer::break_off(const std::string& why) {
  if (!running_) return;
  if (announced_ || next_bucket_ > 0) {
    group.fail(
        text("a backward pass ended before all gradients were reduced (", next_bucket_, " of ",
             buckets_.size(), " buckets were on their way): ", why,
             "; the ranks are no longer in step: end the run on all of them and resume from a checkpoint"));
    // Later passes write this memory, so the running reductions must end first.
    for (Bucket& bucket : buckets_) {
      if (const auto wait = std::exchange(bucket.wait, nullptr)) quietly(wait);
    }
    for (Coalesced& buffers : buffers_) quietly([&] { buffers.give_up(); });
  }
  forget_pass();
}

void DistributedDataParallel::Reducer::break_off_and_throw(const std::exception_ptr& error) {
  break_off(message_of(error));
  std::rethrow_exception(error);
}

}  // namespace trireme::parallel
