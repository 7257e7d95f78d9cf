#pragma once
// How many fields an aggregate has, at compile time: a list of its fields that is written by hand is compared
// with it, so that a new field cannot be left out. Fields of base classes count as its own; a member that is
// a struct counts as one. Limits: members must be initialisable from a prvalue of their type, and must be no
// arrays of the language (std::array is one member).

#include <cstddef>
#include <type_traits>

namespace trireme {
namespace num_fields_internal {

/// Converts to any type of a member of `Struct`; bases are initialised member by member.
template <class Struct>
struct AnyField {
  template <class Field>
  requires(!std::is_base_of_v<Field, Struct>) operator Field() const;  // NOLINT(google-explicit-constructor)
};

template <class Struct, class... Fields>
consteval std::size_t count() {
  if constexpr (requires { Struct{Fields{}..., AnyField<Struct>{}}; }) {
    return count<Struct, Fields..., AnyField<Struct>>();
  } else {
    return sizeof...(Fields);
  }
}

}  // namespace num_fields_internal

/// Members of the aggregate `Struct`, those of its bases included.
template <class Struct>
consteval std::size_t num_fields() {
  static_assert(std::is_aggregate_v<Struct>, "fields of an aggregate can be counted, and of nothing else");
  return num_fields_internal::count<Struct>();
}

}  // namespace trireme
