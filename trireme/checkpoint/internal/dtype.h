#pragma once
// Names of element types in safetensors files. Stateless; thread-safe.

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

namespace trireme::checkpoint {

/// "F32" of a float tensor. Throws InvalidArgument with the tensor's name for a type that the format, or we,
/// cannot hold.
std::string dtype_name(at::ScalarType type, const std::string& tensor);

/// Empty for an unknown name.
std::optional<at::ScalarType> dtype_of(std::string_view name);

}  // namespace trireme::checkpoint
