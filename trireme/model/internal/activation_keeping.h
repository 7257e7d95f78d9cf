#pragma once
// Storage of an ActivationStore's memory: in a file, or in the host's memory next to a device. It does not
// depend on autograd. Thread-safe.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "trireme/model/activation_store.h"

namespace trireme::model {

/// The memory of a storage that is kept, as it was when a tensor of it was saved first. Under the mutex of
/// its keeper.
struct KeptMemory {
  /// Where it is: still in memory; elsewhere; on its way back; back.
  enum class State { kLeaving, kAway, kComing, kBack };

  explicit KeptMemory(const at::Tensor& tensor)
      : saved(tensor.detach()),
        origin(tensor.storage().getWeakStorageImpl()),
        version(tensor._version()),
        bytes(static_cast<std::int64_t>(tensor.storage().nbytes())) {}

  at::Tensor saved;  ///< until it has left
  const c10::weak_intrusive_ptr<c10::StorageImpl> origin;
  const std::uint32_t version;
  const std::int64_t bytes;
  std::uint64_t number = 0;
  State state = State::kLeaving;
  bool wanted = true;
  bool changed = false;        ///< in place, before it had left
  at::Tensor on_host;          ///< bytes: the buffer of writes and reads, for a device; its home without a
                               ///< file
  at::Tensor back;             ///< bytes, on the device
  std::exception_ptr failure;  ///< of its way back
  std::uint64_t place = 0;     ///< in a file
  bool is_ahead = false;       ///< fetched before its first use
};

class ActivationStore::Keeping : public std::enable_shared_from_this<Keeping> {
 public:
  explicit Keeping(ActivationStoreOptions options) : options_(std::move(options)) {}
  virtual ~Keeping() = default;
  Keeping(const Keeping&) = delete;
  Keeping& operator=(const Keeping&) = delete;

  const ActivationStoreOptions& options() const { return options_; }

  /// A use of the memory; it is freed with the last.
  class Use;
  /// Of the tensor's whole storage, one for all tensors of it that are of one version. Throws DataError.
  std::shared_ptr<Use> keep(const at::Tensor& tensor);

  std::int64_t kept_bytes() const;
  std::int64_t max_kept_bytes() const;

 protected:
  /// It is to leave. Throws DataError; then it is not kept.
  virtual void begin(const std::shared_ptr<KeptMemory>& memory) = 0;
  /// On the device, until it has no use. Throws DataError; InvalidArgument: it was changed.
  virtual c10::Storage bring(const std::shared_ptr<KeptMemory>& memory) = 0;
  /// It has no use any more.
  virtual void end(const std::shared_ptr<KeptMemory>& memory) = 0;

  const ActivationStoreOptions options_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<KeptMemory>> live_;  ///< under the mutex, as it was saved

 private:
  void forget(const std::shared_ptr<KeptMemory>& memory);

  // Under the mutex:
  std::map<const void*, std::weak_ptr<Use>> by_storage_;
  std::uint64_t next_number_ = 0;
  std::int64_t kept_bytes_ = 0, max_kept_bytes_ = 0;
};

class ActivationStore::Keeping::Use {
 public:
  Use(std::shared_ptr<Keeping> keeping, std::shared_ptr<KeptMemory> memory)
      : keeping_(std::move(keeping)), memory_(std::move(memory)) {}
  ~Use() { keeping_->forget(memory_); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  /// As bring().
  c10::Storage storage() { return keeping_->bring(memory_); }
  /// Whether it is this tensor's memory, as it is now.
  bool is_of(const at::Tensor& tensor) const {
    const auto origin = memory_->origin.lock();
    return origin.get() == tensor.storage().unsafeGetStorageImpl() && memory_->version == tensor._version();
  }

 private:
  const std::shared_ptr<Keeping> keeping_;
  const std::shared_ptr<KeptMemory> memory_;
};

/// The bytes of a tensor's whole storage.
at::Tensor bytes_of_storage(const at::Tensor& tensor);

/// Throw as ActivationStore's constructor does.
std::shared_ptr<ActivationStore::Keeping> keeping_in_file(const ActivationStoreOptions& options);
std::shared_ptr<ActivationStore::Keeping> keeping_on_host(const ActivationStoreOptions& options);

}  // namespace trireme::model
