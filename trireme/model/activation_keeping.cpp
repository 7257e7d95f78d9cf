#include "trireme/model/internal/activation_keeping.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <iterator>
#include <span>

#include "trireme/base/error.h"
#include "trireme/base/io_thread.h"
#include "trireme/base/scratch_file.h"
#include "trireme/batch/copy_stream.h"

namespace trireme::model {
namespace {

using State = KeptMemory::State;
using MemoryPointer = std::shared_ptr<KeptMemory>;

at::Tensor empty_bytes(std::int64_t bytes, const at::TensorOptions& options) {
  return at::empty({bytes}, options.dtype(at::kByte));
}

std::span<std::byte> span_of(const at::Tensor& bytes) {
  return {static_cast<std::byte*>(bytes.mutable_data_ptr()), bytes.nbytes()};
}

[[noreturn]] void reject_changed() {
  throw InvalidArgument(
      "a tensor that a backward needs was changed in place after it was saved, and before it had left "
      "memory; "
      "change a copy, or change it after the backward");
}

/// Allocates byte ranges of a file.
class FileRoom {
 public:
  explicit FileRoom(ScratchFile& file) : file_(file) {}

  /// Throws DataError if the disk is full.
  std::uint64_t take(std::uint64_t bytes) {
    const auto run =
        std::find_if(free_.begin(), free_.end(), [&](const auto& each) { return each.second >= bytes; });
    if (run == free_.end()) {
      file_.reserve(end_ + bytes);
      return std::exchange(end_, end_ + bytes);
    }
    const auto [place, length] = *run;
    free_.erase(run);
    if (length > bytes) free_.emplace(place + bytes, length - bytes);
    return place;
  }

  void give_back(std::uint64_t place, std::uint64_t bytes) {
    auto run = free_.emplace(place, bytes).first;
    if (const auto next = std::next(run); next != free_.end() && place + bytes == next->first) {
      run->second += next->second;
      free_.erase(next);
    }
    if (run == free_.begin()) return;
    const auto before = std::prev(run);
    if (before->first + before->second != run->first) return;
    before->second += run->second;
    free_.erase(run);
  }

 private:
  ScratchFile& file_;
  std::map<std::uint64_t, std::uint64_t> free_;  ///< offset and length; adjacent ranges are merged
  std::uint64_t end_ = 0;                        ///< end of the ranges that were ever allocated
};

class InFile final : public ActivationStore::Keeping {
 public:
  explicit InFile(const ActivationStoreOptions& options)
      : Keeping(options),
        file_({.folder = options.folder, .owner = options.owner, .purpose = "activations"}),
        room_(file_) {}

 private:
  bool is_device() const { return options_.device.type() != c10::kCPU; }

  void begin(const MemoryPointer& memory) override {
    // Bytes of a device reach the file through host memory, and the forward waits for this copy. It comes
    // before the counters: a failed allocation leaves nothing counted.
    if (is_device()) {
      memory->on_host = bytes_of_storage(memory->saved).to(at::kCPU);
      memory->saved.reset();
    }
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] {
        return leaving_bytes_ == 0 || leaving_bytes_ + memory->bytes <= options_.bytes_under_way;
      });
      if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
      memory->place = room_.take(static_cast<std::uint64_t>(memory->bytes));
      leaving_bytes_ += memory->bytes;
    }
    writer_.start([this, memory] { write(memory); });
  }

  void write(const MemoryPointer& memory) {
    at::Tensor source;
    {
      const std::lock_guard lock(mutex_);
      if (memory->wanted && memory->state == State::kLeaving)
        source = is_device() ? memory->on_host : bytes_of_storage(memory->saved);
    }
    std::exception_ptr failure;
    try {
      if (source.defined()) file_.write(memory->place, span_of(source));
    } catch (...) {
      failure = std::current_exception();
    }
    at::Tensor left;  // freed after the lock is released
    {
      const std::lock_guard lock(mutex_);
      leaving_bytes_ -= memory->bytes;
      if (failure) {
        failure_ = failure;  // the next begin() throws it; this tensor is still in memory
      } else if (source.defined() && memory->wanted && memory->state == State::kLeaving) {
        note_change(*memory);
        left = std::exchange(is_device() ? memory->on_host : memory->saved, {});
        memory->state = State::kAway;
      }
    }
    changed_.notify_all();
  }

  static void note_change(KeptMemory& memory) {
    if (memory.saved.defined() && memory.saved._version() != memory.version) memory.changed = true;
  }

  c10::Storage bring(const MemoryPointer& memory) override {
    std::unique_lock lock(mutex_);
    if (std::exchange(memory->is_ahead, false)) ahead_bytes_ -= memory->bytes;
    changed_.wait(lock, [&] { return memory->state != State::kComing; });
    if (memory->state == State::kAway && !memory->failure) {
      memory->state = State::kComing;
      lock.unlock();
      read(memory);
      lock.lock();
    }
    if (memory->failure) std::rethrow_exception(std::exchange(memory->failure, nullptr));
    note_change(*memory);
    if (memory->changed) reject_changed();
    if (memory->state == State::kLeaving) {
      memory->back = is_device() ? memory->on_host : bytes_of_storage(memory->saved);
      memory->saved.reset();
      memory->state = State::kBack;
    }
    if (is_device() && !memory->back.device().is_cpu()) return memory->back.storage();
    if (is_device()) {
      memory->back = memory->back.to(options_.device);
      memory->on_host.reset();
    }
    fetch_before(memory->number);
    return memory->back.storage();
  }

  /// Reads from the file, on either thread.
  void read(const MemoryPointer& memory) {
    at::Tensor bytes;
    std::exception_ptr failure;
    try {
      bytes = empty_bytes(memory->bytes, at::device(at::kCPU));
      file_.read(memory->place, span_of(bytes));
    } catch (...) {
      failure = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      memory->failure = failure;
      memory->state = failure ? State::kAway : State::kBack;
      if (memory->wanted && !failure) memory->back = std::move(bytes);
    }
    changed_.notify_all();
  }

  /// Prefetches in reverse order of the saves, the order in which a backward reads. Called under the mutex.
  void fetch_before(std::uint64_t number) {
    for (auto next = live_.lower_bound(number); next != live_.begin();) {
      const MemoryPointer& memory = (--next)->second;
      if (memory->state != State::kAway) continue;
      if (ahead_bytes_ > 0 && ahead_bytes_ + memory->bytes > options_.bytes_under_way) return;
      memory->is_ahead = true;
      memory->state = State::kComing;
      ahead_bytes_ += memory->bytes;
      reader_.start([this, memory] { read(memory); });
    }
  }

  void end(const MemoryPointer& memory) override {
    at::Tensor saved, back, on_host;  // freed after the lock is released
    const std::lock_guard lock(mutex_);
    memory->wanted = false;
    if (std::exchange(memory->is_ahead, false)) ahead_bytes_ -= memory->bytes;
    // The writer thread writes in order, so the next tensor in this range is written after this one.
    room_.give_back(memory->place, static_cast<std::uint64_t>(memory->bytes));
    saved = std::move(memory->saved);
    back = std::move(memory->back);
    on_host = std::move(memory->on_host);
  }

  ScratchFile file_;
  FileRoom room_;                    ///< this and the following members: under the mutex
  std::int64_t leaving_bytes_ = 0;   ///< being written to the file
  std::int64_t ahead_bytes_ = 0;     ///< prefetched or being read, and not used yet
  std::exception_ptr failure_;       ///< of a write, not thrown yet
  std::condition_variable changed_;  ///< a write or a read has ended
  IoThread reader_{"activations in"}, writer_{"activations out"};  ///< destroyed first
};

/// Copies run in a separate stream, so neither host nor device waits for them. Stream order ensures that
/// freed memory is overwritten only after the reads from it.
class OnHost final : public ActivationStore::Keeping {
 public:
  explicit OnHost(const ActivationStoreOptions& options) : Keeping(options) {
    require(options.device.type() != c10::kCPU,
            "activations of the CPU are in the host's memory already: name a folder for a file of them");
  }
  ~OnHost() override {
    if (!free_.empty())
      c10::impl::VirtualGuardImpl(options_.device.type()).synchronizeDevice(options_.device.index());
  }
  OnHost(const OnHost&) = delete;
  OnHost& operator=(const OnHost&) = delete;

 private:
  void begin(const MemoryPointer& memory) override {
    memory->on_host = room_for(memory->bytes);
    const at::Tensor bytes = bytes_of_storage(memory->saved);
    copies_.run([&] { memory->on_host.copy_(bytes, /*non_blocking=*/true); });
    copies_.lend(bytes);
    memory->saved.reset();
    memory->state = State::kAway;
  }

  c10::Storage bring(const MemoryPointer& memory) override {
    const std::lock_guard lock(mutex_);
    if (memory->state == State::kAway) {
      memory->back = empty_bytes(memory->bytes, at::device(options_.device));
      copies_.run([&] { memory->back.copy_(memory->on_host, /*non_blocking=*/true); });
      copies_.lend(memory->back);
      copies_.join(copies_.mark());
      memory->state = State::kBack;
    }
    return memory->back.storage();
  }

  void end(const MemoryPointer& memory) override {
    const std::lock_guard lock(mutex_);
    free_.emplace(memory->bytes, std::move(memory->on_host));
    memory->back.reset();
  }

  at::Tensor room_for(std::int64_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = free_.find(bytes);
      if (found != free_.end()) return free_.extract(found).mapped();
    }
    try {
      return empty_bytes(bytes, at::TensorOptions().pinned_memory(true));
    } catch (const c10::Error& error) {
      throw DataError(text(options_.owner, ": the host has no memory that can be pinned for ",
                           human_bytes(static_cast<std::uint64_t>(bytes)),
                           " of activations: ", error.what_without_backtrace(),
                           "; keep them in files (\"files\"), or recompute layers (train.recompute_layers)"));
    }
  }

  batch::CopyStream copies_{options_.device};     ///< the forward continues during the copies
  std::multimap<std::int64_t, at::Tensor> free_;  ///< under the mutex, by bytes
};

}  // namespace

std::shared_ptr<ActivationStore::Keeping> keeping_in_file(const ActivationStoreOptions& options) {
  return std::make_shared<InFile>(options);
}

std::shared_ptr<ActivationStore::Keeping> keeping_on_host(const ActivationStoreOptions& options) {
  return std::make_shared<OnHost>(options);
}

}  // namespace trireme::model
