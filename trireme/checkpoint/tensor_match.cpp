#include "trireme/checkpoint/tensor_match.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/printable.h"

namespace trireme::checkpoint {
namespace {

constexpr std::size_t kMostNamed = 5;

std::string named(const std::string& name, const at::Tensor& tensor) {
  return text("'", printable(name), "' ", tensor.sizes());
}

/// "; 7 missing: a, b, c, d, e and 2 more"; nothing when there are none.
std::string list(const std::vector<std::string>& tensors, const char* what) {
  if (tensors.empty()) return "";
  const std::vector<std::string> first(
      tensors.begin(), tensors.begin() + static_cast<std::ptrdiff_t>(std::min(tensors.size(), kMostNamed)));
  const std::string more =
      tensors.size() > kMostNamed ? text(" and ", tensors.size() - kMostNamed, " more") : "";
  return text("; ", tensors.size(), " ", what, ": ", join(first), more);
}

}  // namespace

void check_same_tensors(const TensorMap& found, const TensorMap& expected, const std::string& source) {
  std::vector<std::string> missing, unexpected, differing;
  for (const auto& [name, tensor] : expected) {
    const auto other = found.find(name);
    if (other == found.end()) {
      missing.push_back(named(name, tensor));
    } else if (other->second.sizes() != tensor.sizes()) {
      differing.push_back(text(named(name, other->second), " instead of ", tensor.sizes()));
    }
  }
  for (const auto& [name, tensor] : found) {
    if (!expected.contains(name)) unexpected.push_back(named(name, tensor));
  }
  if (missing.empty() && unexpected.empty() && differing.empty()) return;
  throw DataError(text("the tensors of ", source, " are not the model's (", found.size(), " found, ",
                       expected.size(), " expected)", list(missing, "missing"),
                       list(unexpected, "unexpected"), list(differing, "of another shape"),
                       "; choose the model they were saved from, or rename them"));
}

std::vector<std::string> drop_tied_copies(TensorMap& found, const TensorMap& expected) {
  using Form = std::pair<at::ScalarType, std::vector<std::int64_t>>;
  const auto form_of = [](const at::Tensor& tensor) {
    return Form(tensor.scalar_type(), tensor.sizes().vec());
  };
  std::multimap<Form, at::Tensor> taken;
  for (const auto& [name, tensor] : found) {
    if (expected.contains(name)) taken.emplace(form_of(tensor), tensor);
  }
  const auto is_copy = [&](const at::Tensor& tensor) {
    const auto [begin, end] = taken.equal_range(form_of(tensor));
    return std::any_of(begin, end, [&](const auto& item) { return item.second.equal(tensor); });
  };
  std::vector<std::string> dropped;
  for (const auto& [name, tensor] : found) {
    if (tensor.dim() >= 2 && !expected.contains(name) && is_copy(tensor)) dropped.push_back(name);
  }
  for (const std::string& name : dropped) found.erase(name);
  return dropped;
}

}  // namespace trireme::checkpoint
