#include "tests/support/stand_in_graph.h"

#include <ATen/Context.h>

#include <atomic>
#include <cstring>
#include <sstream>

namespace trireme::test {
namespace {

std::atomic<StandInGraph*> current = nullptr;

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

bool is_of_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1;
}

bool is_there(const at::Tensor& tensor) { return is_of_device(tensor) && tensor.numel() > 0; }

}  // namespace

StandInGraph::~StandInGraph() {
  StandInGraph* mine = this;
  current.compare_exchange_strong(mine, nullptr);
}

void StandInGraph::begin() {
  StandInGraph* none = nullptr;
  TORCH_CHECK(current.compare_exchange_strong(none, this),
              "another graph is being captured on the stand-in device");
  generator_state_ = at::globalContext().defaultGenerator(c10::kCPU).get_state();
}

void StandInGraph::end() {
  current = nullptr;
  for (auto& [key, before] : before_) {
    auto& [storage, bytes] = before;
    std::memcpy(bytes_(storage.data()), bytes.data(), bytes.size());
  }
  before_.clear();
  at::Generator generator = at::globalContext().defaultGenerator(c10::kCPU);
  generator.set_state(generator_state_);
}

void StandInGraph::replay() {
  check_alive();
  for (const Entry& entry : entries_) entry.again(entry.arguments, entry.results);
}

StandInGraph* StandInGraph::capturing() { return current; }

void StandInGraph::reject_wait(const std::string& what) {
  TORCH_CHECK(current == nullptr, what,
              " while a graph is captured: the host would wait for work that is only recorded");
}

void StandInGraph::made(const at::Tensor& tensor) {
  // An empty tensor also counts, because it may get elements later.
  if (is_of_device(tensor)) made_.insert(storage_of(tensor));
}

void StandInGraph::will_write(const at::Tensor& tensor) {
  if (!is_there(tensor) || made_.contains(storage_of(tensor)) || before_.contains(storage_of(tensor))) return;
  const auto* begin = bytes_(tensor.storage().data());
  before_.emplace(
      storage_of(tensor),
      std::pair(tensor.storage(), std::vector<std::byte>(begin, begin + tensor.storage().nbytes())));
}

void StandInGraph::note(const std::string& operation, const at::Tensor& tensor) {
  if (!is_there(tensor) || made_.contains(storage_of(tensor))) return;
  std::ostringstream sizes;
  sizes << tensor.sizes();
  auto [place, is_new] = outside_.try_emplace(
      storage_of(tensor),
      Outside{.operation = operation, .sizes = sizes.str(), .storage = tensor.storage(), .held = {}});
  ++place->second.held[tensor.unsafeGetTensorImpl()];
}

void StandInGraph::add(std::string operation, Values arguments, Values results, Again again) {
  for (const Values* values : {&arguments, &results}) {
    for (const c10::IValue& value : *values) {
      if (value.isTensor()) note(operation, value.toTensor());
      if (!value.isTensorList()) continue;
      for (const at::Tensor& tensor : value.toTensorList()) note(operation, tensor);
    }
  }
  entries_.push_back({std::move(operation), std::move(arguments), std::move(results), std::move(again)});
}

/// A storage is alive while a tensor that refers to it is held outside of the graph.
void StandInGraph::check_alive() const {
  for (const auto& [key, outside] : outside_) {
    // Subtracts the references of the graph: one of its own, and one for each tensor that it holds.
    auto others = static_cast<std::ptrdiff_t>(outside.storage.use_count()) - 1;
    for (const auto& [tensor, references] : outside.held) {
      const bool is_mine =
          c10::raw::intrusive_ptr::use_count(const_cast<c10::TensorImpl*>(tensor)) <= references;
      if (is_mine) --others;
    }
    TORCH_CHECK(others > 0, outside.operation, " of a captured graph reads a tensor of sizes ", outside.sizes,
                " that was freed after the capture; give it to the step as an input");
  }
}

}  // namespace trireme::test
