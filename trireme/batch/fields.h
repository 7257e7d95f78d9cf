#pragma once
// Inputs, outputs and targets of a model: tensors with names, in an order. One tensor is the common case and
// needs no name: it becomes Fields by itself, and Fields of one tensor become that tensor. So code with one
// input, output or target uses at::Tensor. In a batch every tensor has a first dim of samples. A value whose
// copies share the tensors; not thread-safe.

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::batch {

/// Tensors without names, by their place.
using Tensors = std::vector<at::Tensor>;

/// One tensor of Fields, and its name.
struct Field {
  std::string name;  ///< empty: it has none, and is known by its place
  at::Tensor tensor;
};

class Fields {
 public:
  Fields() = default;
  // NOLINTBEGIN(google-explicit-constructor): see above.
  /// One field without a name.
  Fields(at::Tensor tensor) { fields_.push_back({.name = {}, .tensor = std::move(tensor)}); }
  /// {{"tokens", tokens}, {"mask", mask}}. Throws InvalidArgument: two of one name.
  Fields(std::initializer_list<Field> fields);
  /// Fields without names.
  Fields(const Tensors& tensors);

  /// The only field's. Throws InvalidArgument, which lists the fields, where there is not one.
  operator at::Tensor() const { return only(); }
  operator Tensors() const;
  // NOLINTEND(google-explicit-constructor)
  const at::Tensor* operator->() const { return &only(); }
  const at::Tensor& operator*() const { return only(); }

  /// Throws InvalidArgument: there is none of that name (nearest one named), or at that place.
  at::Tensor operator[](std::string_view name) const;
  at::Tensor at(std::size_t place) const;
  /// A number could mean a place or, of one tensor, a row.
  at::Tensor operator[](std::integral auto number) const = delete;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  /// After the others. Throws InvalidArgument: there is one of that name.
  void add(std::string name, at::Tensor tensor);

  std::size_t size() const { return fields_.size(); }
  bool empty() const { return fields_.empty(); }
  std::vector<Field>::const_iterator begin() const { return fields_.begin(); }
  std::vector<Field>::const_iterator end() const { return fields_.end(); }
  bool has_names() const;
  /// The first dim of the first field; 0 without one.
  std::int64_t rows() const;

  /// The first `count` of them.
  Fields first(std::size_t count) const;
  /// The same on that device. Copies to it may be in progress: later work there comes after them.
  Fields on(c10::Device device) const;
  /// The same names with the result of `change` for each tensor.
  template <class Change>
  Fields map(const Change& change) const {
    Fields changed = *this;
    for (Field& field : changed.fields_) field.tensor = change(std::as_const(field.tensor));
    return changed;
  }

 private:
  const at::Tensor& only() const;
  const at::Tensor* find(std::string_view name) const;

  std::vector<Field> fields_;
};

/// Whether both have as many fields, with the same names in the same order; tensors are not looked at.
bool same_names(const Fields& one, const Fields& other);
/// "Float of shape [8, 64]", "2 fields: 'tokens', Long of shape [8, 64]; 'mask', Bool of shape [8, 64]"
std::string to_text(const Fields& fields);
/// "'tokens'", or by its place "number 0".
std::string name_of(const Fields& fields, std::size_t place);

}  // namespace trireme::batch

namespace trireme {
using batch::Fields;
}
