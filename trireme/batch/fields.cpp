#include "trireme/batch/fields.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::batch {
namespace {

std::string kind_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return text(tensor.scalar_type(), " of shape ", tensor.sizes());
}

}  // namespace

Fields::Fields(std::initializer_list<Field> fields) {
  fields_.reserve(fields.size());
  for (const Field& field : fields) add(field.name, field.tensor);
}

Fields::Fields(const Tensors& tensors) {
  fields_.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) fields_.push_back({.name = {}, .tensor = tensor});
}

Fields::operator Tensors() const {
  Tensors tensors;
  tensors.reserve(fields_.size());
  for (const Field& field : fields_) tensors.push_back(field.tensor);
  return tensors;
}

const at::Tensor& Fields::only() const {
  if (fields_.size() != 1)
    throw InvalidArgument(text("expected one tensor, found ", to_text(*this),
                               "; whoever takes several takes trireme::Fields and asks for them by name"));
  return fields_.front().tensor;
}

const at::Tensor* Fields::find(std::string_view name) const {
  for (const Field& field : fields_) {
    if (field.name == name) return &field.tensor;
  }
  return nullptr;
}

at::Tensor Fields::operator[](std::string_view name) const {
  if (const at::Tensor* found = find(name)) return *found;
  std::vector<std::string> known;
  for (const Field& field : fields_) known.push_back(field.name.empty() ? "(no name)" : field.name);
  throw InvalidArgument(text("there is no field '", name, "'", suggest(name, known)));
}

at::Tensor Fields::at(std::size_t place) const {
  if (place >= fields_.size())
    throw InvalidArgument(text("there is no field number ", place, " in ", to_text(*this)));
  return fields_[place].tensor;
}

void Fields::add(std::string name, at::Tensor tensor) {
  require(name.empty() || !has(name), "there are two fields '", name, "'; give each a name of its own");
  fields_.push_back({.name = std::move(name), .tensor = std::move(tensor)});
}

Fields Fields::first(std::size_t count) const {
  Fields some;
  some.fields_.assign(fields_.begin(), fields_.begin() + static_cast<std::ptrdiff_t>(count));
  return some;
}

bool Fields::has_names() const {
  return std::ranges::any_of(fields_, [](const Field& field) { return !field.name.empty(); });
}

std::int64_t Fields::rows() const {
  if (fields_.empty() || !fields_[0].tensor.defined() || fields_[0].tensor.dim() == 0) return 0;
  return fields_[0].tensor.size(0);
}

bool same_names(const Fields& one, const Fields& other) {
  const auto name = [](const Field& field) -> const std::string& { return field.name; };
  return std::ranges::equal(one, other, {}, name, name);
}

std::string to_text(const Fields& fields) {
  if (fields.empty()) return "no field";
  std::vector<std::string> each;
  for (const auto& [name, tensor] : fields)
    each.push_back(name.empty() ? kind_of(tensor) : text("'", name, "', ", kind_of(tensor)));
  return each.size() == 1 ? each[0] : text(each.size(), " fields: ", join(each, "; "));
}

std::string name_of(const Fields& fields, std::size_t place) {
  const std::string& name = (fields.begin() + static_cast<std::ptrdiff_t>(place))->name;
  return name.empty() ? text("number ", place) : text("'", name, "'");
}

Fields Fields::on(c10::Device device) const {
  return map([&](const at::Tensor& tensor) { return tensor.to(device, /*non_blocking=*/true); });
}

}  // namespace trireme::batch
