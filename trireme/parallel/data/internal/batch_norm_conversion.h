#pragma once
// Batch norms of libtorch replaced by a class of ours with the same tensors, names, options and mode.

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <typeinfo>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/parallel/data/batch_norm_module.h"

namespace trireme::parallel {

/// Calls `use` with the options and tensors of a batch norm; false for other modules.
template <class Use>
bool as_batch_norm(torch::nn::Module& module, const Use& use) {
  const auto attempt = [&](auto* norm) {
    if (norm != nullptr) use(*norm);
    return norm != nullptr;
  };
  return attempt(module.as<torch::nn::BatchNorm1dImpl>()) ||
         attempt(module.as<torch::nn::BatchNorm2dImpl>()) || attempt(module.as<torch::nn::BatchNorm3dImpl>());
}

inline bool is_batch_norm(torch::nn::Module& module) {
  return as_batch_norm(module, [](auto&) {});
}

/// Names for the conversion's messages.
struct ConversionNames {
  std::string function;  ///< "convert_sync_batchnorm"
  std::string layer;     ///< "trireme::SyncBatchNorm"
};

/// The batch norms below a module. Impl: the class that replaces them.
template <class Impl>
class BatchNormConversion {
 public:
  /// Throws InvalidArgument: the module is itself a batch norm, or a layer derives from one.
  BatchNormConversion(torch::nn::Module& root, ConversionNames names) : names_(std::move(names)) {
    require(
        !is_batch_norm(root), names_.function,
        " cannot replace the module itself: found a batch norm; expected a module that contains batch norms. "
        "Make a ",
        names_.layer, " instead");
    visit(root, "");
  }

  /// Replaces each by `make(options, tensors)`, and calls `set` with each and with those that were there.
  /// Returns their number. Throws InvalidArgument, with nothing changed: something else holds a layer.
  template <class Make, class Set>
  std::int64_t run(const Make& make, const Set& set) {
    std::vector<std::string> held;
    for (const Found& each : found_) {
      const auto expected = static_cast<std::int64_t>(each.places.size()) + 1;
      if (each.layer.use_count() > expected) held.push_back(text("'", each.name, "'"));
    }
    require(
        held.empty(), names_.function, " cannot replace ", join(held, ", "),
        ": found a batch norm that something else holds, such as a member of its parent, whose forward would "
        "continue to use the old layer; expected layers of a Sequential. Declare the member as ",
        names_.layer, ", which ", names_.function, " completes");
    for (Found& each : found_) replace(each, make);
    for (Impl* layer : ready_) set(*layer);
    return static_cast<std::int64_t>(ready_.size());
  }

 private:
  using ModulePointer = std::shared_ptr<torch::nn::Module>;

  /// A layer to replace, and where. The layers of `places` are entries of their parents.
  struct Found {
    ModulePointer layer;
    std::string name;  ///< "layer1.0.bn1"
    std::vector<std::function<void(const std::shared_ptr<Impl>&)>> places;
  };

  void visit(torch::nn::Module& module, const std::string& name) {
    if (!visited_.insert(&module).second) return;
    if (auto* layer = module.as<Impl>()) ready_.push_back(layer);
    for (const auto& item : module.named_children()) {
      if (item.value() == nullptr) continue;
      const std::string path = name.empty() ? item.key() : name + "." + item.key();
      if (!is_batch_norm(*item.value())) {
        visit(*item.value(), path);
        continue;
      }
      found(item.value(), path).places.push_back([&module, key = item.key()](const auto& layer) {
        module.replace_module(key, layer);
      });
    }
    visit_entries(module);
  }

  /// Containers have a second list, which their forward goes through.
  void visit_entries(torch::nn::Module& module) {
    if (auto* sequential = module.as<torch::nn::SequentialImpl>()) {
      for (torch::nn::AnyModule& entry : *sequential)
        add(entry.ptr(), [&entry](const auto& layer) { entry = torch::nn::AnyModule(layer); });
    }
    if (auto* list = module.as<torch::nn::ModuleListImpl>()) {
      for (ModulePointer& entry : *list) add(entry, [&entry](const auto& layer) { entry = layer; });
    }
    if (auto* dict = module.as<torch::nn::ModuleDictImpl>()) {
      for (auto& item : *dict) add(item.value(), [&item](const auto& layer) { item.value() = layer; });
    }
  }

  template <class Place>
  void add(const ModulePointer& entry, const Place& place) {
    if (entry != nullptr && is_batch_norm(*entry)) found(entry, "").places.push_back(place);
  }

  Found& found(const ModulePointer& layer, const std::string& name) {
    const auto known = std::ranges::find(found_, layer, &Found::layer);
    if (known != found_.end()) return *known;
    const bool is_plain = typeid(*layer) == typeid(torch::nn::BatchNorm1dImpl) ||
                          typeid(*layer) == typeid(torch::nn::BatchNorm2dImpl) ||
                          typeid(*layer) == typeid(torch::nn::BatchNorm3dImpl);
    require(is_plain, names_.function, " cannot replace '", name,
            "': found a class that derives from a batch norm and may have a forward of its own; expected "
            "BatchNorm1d, 2d or 3d, or ",
            names_.layer);
    return found_.emplace_back(Found{.layer = layer, .name = name, .places = {}});
  }

  template <class Make>
  void replace(Found& each, const Make& make) {
    as_batch_norm(*each.layer, [&](auto& old) {
      const std::shared_ptr<Impl> layer = make(
          old.options,
          BatchNormTensors{old.weight, old.bias, old.running_mean, old.running_var, old.num_batches_tracked});
      layer->train(old.is_training());
      for (const auto& place : each.places) place(layer);
      ready_.push_back(layer.get());
    });
  }

  const ConversionNames names_;
  std::set<const torch::nn::Module*> visited_;
  std::vector<Found> found_;
  std::vector<Impl*> ready_;
};

}  // namespace trireme::parallel
