#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/parallel/data/sync_batch_norm.h"

namespace trireme::parallel {
namespace {

namespace nn = torch::nn;
using ModulePointer = std::shared_ptr<nn::Module>;

/// A layer to replace, and where. The layers of `places` are entries of their parents.
struct Found {
  ModulePointer layer;
  std::string name;  ///< "layer1.0.bn1"
  std::vector<std::function<void(const std::shared_ptr<SyncBatchNormImpl>&)>> places;
};

/// Calls `use` with the options and tensors of a batch norm; false for other modules.
template <class Use>
bool as_batch_norm(nn::Module& module, const Use& use) {
  const auto attempt = [&](auto* norm) {
    if (norm != nullptr) use(*norm);
    return norm != nullptr;
  };
  return attempt(module.as<nn::BatchNorm1dImpl>()) || attempt(module.as<nn::BatchNorm2dImpl>()) ||
         attempt(module.as<nn::BatchNorm3dImpl>());
}

bool is_batch_norm(nn::Module& module) {
  return as_batch_norm(module, [](auto&) {});
}

class Conversion {
 public:
  explicit Conversion(nn::Module& root) { visit(root, ""); }

  std::int64_t run(const comm::Group& group) {
    std::vector<std::string> held;
    for (const Found& each : found_) {
      const auto expected = static_cast<std::int64_t>(each.places.size()) + 1;
      if (each.layer.use_count() > expected) held.push_back(text("'", each.name, "'"));
    }
    require(
        held.empty(), "convert_sync_batchnorm cannot replace ", join(held, ", "),
        ": found a batch norm that something else holds, such as a member of its parent, whose forward would "
        "continue to use the old layer; expected layers of a Sequential. Declare the member as "
        "trireme::SyncBatchNorm, which convert_sync_batchnorm gives its group");
    for (Found& each : found_) replace(each, group);
    for (SyncBatchNormImpl* layer : ready_) layer->set_group(group);
    return static_cast<std::int64_t>(found_.size() + ready_.size());
  }

 private:
  void visit(nn::Module& module, const std::string& name) {
    if (!visited_.insert(&module).second) return;
    if (auto* layer = module.as<SyncBatchNormImpl>()) ready_.push_back(layer);
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
  void visit_entries(nn::Module& module) {
    if (auto* sequential = module.as<nn::SequentialImpl>()) {
      for (nn::AnyModule& entry : *sequential)
        add(entry.ptr(), [&entry](const auto& layer) { entry = nn::AnyModule(layer); });
    }
    if (auto* list = module.as<nn::ModuleListImpl>()) {
      for (ModulePointer& entry : *list) add(entry, [&entry](const auto& layer) { entry = layer; });
    }
    if (auto* dict = module.as<nn::ModuleDictImpl>()) {
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
    const bool is_plain = typeid(*layer) == typeid(nn::BatchNorm1dImpl) ||
                          typeid(*layer) == typeid(nn::BatchNorm2dImpl) ||
                          typeid(*layer) == typeid(nn::BatchNorm3dImpl);
    require(is_plain, "convert_sync_batchnorm cannot replace '", name,
            "': found a class that derives from a batch norm and may have a forward of its own; expected "
            "BatchNorm1d, 2d or 3d, or trireme::SyncBatchNorm");
    return found_.emplace_back(Found{.layer = layer, .name = name, .places = {}});
  }

  static void replace(Found& each, const comm::Group& group) {
    as_batch_norm(*each.layer, [&](auto& old) {
      const auto layer = std::make_shared<SyncBatchNormImpl>(
          old.options, group,
          BatchNormTensors{old.weight, old.bias, old.running_mean, old.running_var, old.num_batches_tracked});
      layer->train(old.is_training());
      for (const auto& place : each.places) place(layer);
    });
  }

  std::set<const nn::Module*> visited_;
  std::vector<Found> found_;
  std::vector<SyncBatchNormImpl*> ready_;
};

}  // namespace

std::int64_t convert_sync_batchnorm(nn::Module& module, const comm::Group& group) {
  require(
      !is_batch_norm(module),
      "convert_sync_batchnorm cannot replace the module itself: found a batch norm; expected a module that "
      "contains batch norms. Make a trireme::SyncBatchNorm instead");
  return Conversion(module).run(group);
}

std::int64_t convert_sync_batchnorm(nn::Module& module, comm::Context& context) {
  std::vector<int> ranks(static_cast<std::size_t>(context.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group = context.new_group(ranks, context.free_group_name("sync_batch_norm"));
  return convert_sync_batchnorm(module, *group);
}

}  // namespace trireme::parallel
