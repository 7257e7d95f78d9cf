#include "trireme/ps/part_sink.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

namespace trireme::ps {
namespace {

class FolderParts final : public PartSink {
 public:
  FolderParts(CheckpointRoot root, std::size_t most_waiting)
      : root_(std::move(root)),
        most_waiting_(most_waiting),
        thread_([this](const std::stop_token& stop) { write(stop); }) {}

  void save(PartContents part, std::function<void(SaveOutcome)> done) override {
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.size() < most_waiting_) {
        waiting_.emplace_back(std::move(part), std::move(done));
        done = nullptr;
      }
    }
    if (done) return done({ErrorKind::kNotNow, "other partitions are being written", {}});
    changed_.notify_one();
  }

 private:
  using Task = std::pair<PartContents, std::function<void(SaveOutcome)>>;

  void write(const std::stop_token& stop) {
    for (;;) {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return !waiting_.empty(); }) || stop.stop_requested()) return;
      Task task = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      SaveOutcome outcome;
      try {
        outcome.part = write_part(std::move(task.first), root_);
      } catch (const std::exception& error) {
        outcome = {ErrorKind::kNotSaved, error.what(), {}};
      }
      task.second(std::move(outcome));
    }
  }

  const CheckpointRoot root_;
  std::size_t most_waiting_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Task> waiting_;
  std::jthread thread_;  ///< last: it ends before the members that it uses
};

}  // namespace

std::function<std::unique_ptr<PartSink>()> parts_below(const std::filesystem::path& root,
                                                       std::size_t most_waiting) {
  return [root = CheckpointRoot(root), most_waiting] {
    return std::make_unique<FolderParts>(root, most_waiting);
  };
}

}  // namespace trireme::ps
