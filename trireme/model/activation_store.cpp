#include "trireme/model/activation_store.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>
#include <set>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/model/internal/activation_keeping.h"
#include "trireme/model/internal/saved_tensors.h"

namespace trireme::model {
namespace {

/// A view of less than 1/kMinShare of its storage is not offloaded: the whole storage would have to be
/// copied.
constexpr std::size_t kMinShare = 4;

bool learns(const at::TensorBase& tensor) { return tensor.is_leaf() && tensor.requires_grad(); }

const void* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

}  // namespace

at::Tensor bytes_of_storage(const at::Tensor& tensor) {
  const auto bytes = static_cast<std::int64_t>(tensor.storage().nbytes());
  return at::empty({0}, at::device(tensor.device()).dtype(at::kByte)).set_(tensor.storage(), 0, {bytes}, {1});
}

std::shared_ptr<ActivationStore::Keeping::Use> ActivationStore::Keeping::keep(const at::Tensor& tensor) {
  std::shared_ptr<Use> known;  // freed after the lock is released, as it may be the last use
  const auto memory = std::make_shared<KeptMemory>(tensor);
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_storage_.find(storage_of(tensor));
    if (found != by_storage_.end()) known = found->second.lock();
    if (known && known->is_of(tensor)) return known;
    memory->number = next_number_++;
  }
  begin(memory);
  auto use = std::make_shared<Use>(shared_from_this(), memory);
  const std::lock_guard lock(mutex_);
  live_.emplace(memory->number, memory);
  by_storage_[storage_of(tensor)] = use;
  kept_bytes_ += memory->bytes;
  max_kept_bytes_ = std::max(max_kept_bytes_, kept_bytes_);
  return use;
}

void ActivationStore::Keeping::forget(const std::shared_ptr<KeptMemory>& memory) {
  {
    const std::lock_guard lock(mutex_);
    live_.erase(memory->number);
    kept_bytes_ -= memory->bytes;
    const auto found = by_storage_.find(memory->origin._unsafe_get_target());
    if (found != by_storage_.end() && found->second.expired()) by_storage_.erase(found);
  }
  end(memory);
}

std::int64_t ActivationStore::Keeping::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

std::int64_t ActivationStore::Keeping::max_kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return max_kept_bytes_;
}

ActivationStore::ActivationStore(const ActivationStoreOptions& options)
    : keeping_(options.folder.empty() ? keeping_on_host(options) : keeping_in_file(options)) {}

ActivationStore::~ActivationStore() = default;

std::int64_t ActivationStore::kept_bytes() const { return keeping_->kept_bytes(); }

std::int64_t ActivationStore::max_kept_bytes() const { return keeping_->max_kept_bytes(); }

/// Offloads the tensors that the store takes, and passes the others to the outer keeper.
class ActivationStore::Scope::Keeper : public SavedTensorKeeper {
 public:
  Keeper(std::shared_ptr<Keeping> keeping, const Tensors& own) : keeping_(std::move(keeping)), scope_(*this) {
    for (const at::Tensor& tensor : own) {
      if (tensor.defined() && tensor.has_storage()) own_.insert(storage_of(tensor));
    }
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override;

 private:
  class Kept;

  bool takes(const at::Tensor& tensor) const {
    if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_meta() ||
        tensor.is_inference() || tensor.is_conj() || tensor.is_neg() || !tensor.has_storage())
      return false;
    if (learns(tensor) || (tensor.is_view() && learns(tensor._base()))) return false;
    const auto& options = keeping_->options();
    const std::size_t bytes = tensor.storage().nbytes();
    return tensor.device().type() == options.device.type() &&
           bytes >= static_cast<std::size_t>(options.min_bytes) && tensor.nbytes() * kMinShare >= bytes &&
           !own_.contains(storage_of(tensor));
  }

  const std::shared_ptr<Keeping> keeping_;
  std::set<const void*> own_;  ///< storages
  SavedTensorsScope scope_;
};

/// One saved tensor.
class ActivationStore::Scope::Keeper::Kept : public torch::autograd::SavedVariableHooks {
 public:
  explicit Kept(const Keeper& keeper) : keeper_(&keeper) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    if (keeper_->takes(tensor)) {
      use_ = keeper_->keeping_->keep(tensor);
      options_ = tensor.options().requires_grad(false);
      offset_ = tensor.storage_offset();
      sizes_ = tensor.sizes().vec();
      strides_ = tensor.strides().vec();
    } else if (SavedTensorKeeper* outer = keeper_->scope_.outer()) {
      outer_ = outer->hooks();
      outer_->call_pack_hook(tensor);
    } else {
      // A leaf is held itself, as its memory may be freed and gathered again (sharded weights). Other tensors
      // are detached, so that the graph does not hold itself.
      tensor_ = !tensor.defined() || learns(tensor) ? tensor : tensor.detach();
      version_ = tensor.defined() && !tensor.is_inference() ? tensor._version() : 0;
    }
    keeper_ = nullptr;
  }

  at::Tensor call_unpack_hook() override {
    if (outer_ != nullptr) return outer_->call_unpack_hook();
    if (use_ != nullptr) return at::empty({0}, options_).set_(use_->storage(), offset_, sizes_, strides_);
    require(!tensor_.defined() || tensor_.is_inference() || tensor_._version() == version_,
            "a tensor that a backward needs (", c10::toString(tensor_.scalar_type()), " of shape ",
            tensor_.sizes(), ") was changed in place after it was saved; change a copy, or change it after ",
            "the backward");
    return tensor_;
  }

 private:
  const Keeper* keeper_;  ///< null after the tensor has been packed
  std::shared_ptr<Keeping::Use> use_;
  at::TensorOptions options_;
  std::int64_t offset_ = 0;
  std::vector<std::int64_t> sizes_, strides_;
  std::unique_ptr<torch::autograd::SavedVariableHooks> outer_;
  at::Tensor tensor_;
  std::uint32_t version_ = 0;
};

std::unique_ptr<torch::autograd::SavedVariableHooks> ActivationStore::Scope::Keeper::hooks() {
  return std::make_unique<Kept>(*this);
}

ActivationStore::Scope::Scope(const ActivationStore& store, const Tensors& own)
    : keeper_(std::make_unique<Keeper>(store.keeping_, own)) {}

ActivationStore::Scope::~Scope() = default;

Layer kept_in(const std::shared_ptr<ActivationStore>& store, Layer layer) {
  Tensors own = buffers_of({layer});
  for (const auto& [name, parameter] : layer.parameters) own.push_back(parameter);
  layer.forward = [store, own = std::move(own), forward = std::move(layer.forward)](const Fields& inputs) {
    const ActivationStore::Scope scope(*store, own);
    return forward(inputs);
  };
  return layer;
}

}  // namespace trireme::model
